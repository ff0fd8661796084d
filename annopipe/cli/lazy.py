"""A click group that imports a command only when it runs."""

import importlib
from collections.abc import Mapping
from typing import Any

import click

__all__ = ["LazyGroup"]


class LazyGroup(click.Group):
    """A group whose members are named by module; each module has a click command called ``command``.

    members: name to (module, one line of help), so that --help needs no import.
    """

    def __init__(self, *args: Any, members: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._members = members

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """The names of the members."""
        return sorted(self._members)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The member of that name, imported now."""
        if cmd_name not in self._members:
            return None
        command: click.Command = importlib.import_module(self._members[cmd_name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of members."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in sorted(self._members.items())])
