"""The suite for schedule search: workloads as TOML, and what a search comes to on each; no torch."""
