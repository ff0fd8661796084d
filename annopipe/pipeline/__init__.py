"""Run a pipeline schedule with the explicit graphs of its stages, on torch.distributed."""
