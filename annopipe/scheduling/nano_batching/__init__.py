"""Nano-batches in a schedule: which microbatches run as several lanes where a forward or backward has no partner."""
