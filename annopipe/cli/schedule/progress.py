"""What a command is doing, where somebody watches."""

import contextlib
import sys
from collections.abc import Iterator

import click

__all__ = ["doing"]


@contextlib.contextmanager
def doing(what: str) -> Iterator[None]:
    """Say what is being done, on a terminal, until it is done; nothing stays, and nothing goes to files or pipes."""
    if not sys.stderr.isatty():
        yield
        return
    click.echo(f"{what} ...", err=True, nl=False)
    try:
        yield
    finally:
        click.echo("\r\x1b[K", err=True, nl=False)
