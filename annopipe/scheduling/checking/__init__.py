"""Checks of a schedule: one rule a file, each raises an error that names rank, step and action."""
