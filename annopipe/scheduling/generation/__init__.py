"""From a specification to a schedule: by rules (the generator) or by phases (the exact order)."""
