"""Whole training steps of a small mixture of experts: our runtime and the eager one, measured beside simulated."""
