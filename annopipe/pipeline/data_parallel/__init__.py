"""Parameters that are sharded over data-parallel ranks inside a stage: ``ap.shard``."""
