"""Real models as workloads: their layers traced without memory, and priced for hardware that need not be there."""
