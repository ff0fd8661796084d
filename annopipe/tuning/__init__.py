"""Find schedules: workloads, where to cut them, which rules to follow, and a search over all of it; no torch."""
