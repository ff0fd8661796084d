"""Graphs whose stretches of computation are compiled by Inductor, in the order that a policy chose."""
