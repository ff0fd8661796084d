"""Real models at the size of a cluster: tracing a stage, the talk's relative results, what a better partition gains."""
