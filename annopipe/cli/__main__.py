"""``python -m annopipe.cli``."""

from annopipe.cli import main

main()
