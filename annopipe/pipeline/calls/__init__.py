"""What a step is called with, and what decides whether the graphs of an earlier call still hold."""
