"""Pipeline schedules: actions, placements, a language that generates them, checks and lowering; no torch."""
