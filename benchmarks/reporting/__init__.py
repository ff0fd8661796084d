"""What a benchmark wrote as JSON, read again: one run as a table, two runs compared; no torch."""
