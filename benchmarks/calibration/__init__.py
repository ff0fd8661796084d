"""Predicted against paced: from a calibrated machine and measured layers to schedules, and what these then take."""
