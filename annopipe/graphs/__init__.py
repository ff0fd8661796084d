"""The FX graphs of one pipeline stage, and every pass over them."""
