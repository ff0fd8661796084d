"""Programs that measure annopipe, and the tools they share; `annopipe bench` runs them."""
