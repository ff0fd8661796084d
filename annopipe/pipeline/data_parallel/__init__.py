"""Parameters that data-parallel ranks share inside a stage: ``ap.shard``."""
