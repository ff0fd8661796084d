"""Shorten a given schedule: move its actions one by one, along the critical path and within the memory; no torch."""
