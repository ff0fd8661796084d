"""Simulation of many ranks that run a pipeline schedule: computation and links of every rank, memory over time."""
