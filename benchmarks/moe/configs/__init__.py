"""The configurations of `annopipe bench moe`, as TOML: see ``benchmarks.moe.config``."""
