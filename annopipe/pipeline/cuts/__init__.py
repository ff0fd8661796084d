"""Cut a model into stages: ``ap.split``."""
