"""``python -m annopipe``: the command line."""

from annopipe.cli import main

main()
