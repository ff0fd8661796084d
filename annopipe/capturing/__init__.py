"""Graphs whose runs of computation are captured as CUDA graphs, and replayed in the place of their operations."""
