"""Timelines drawn with matplotlib. Everything that imports it is in here; `annopipe.simulation.png` is the door."""
