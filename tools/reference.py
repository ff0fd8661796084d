"""The reference pages of the site, made when it is built: every public name from its docstring, every command's help.

A public name stands on the page of the package that it comes from, whatever new name there is; a package that PAGES
does not know gets a page of its own name.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import click

import annopipe as ap
import annopipe.kernels
import annopipe.models
import annopipe.simulation
import rewriters
import rewriters.expert_parallel
import rewriters.reporting
from annopipe.cli import command as annopipe_command
from annopipe.scheduling import shares
from annopipe.simulation import png
from annopipe.simulation.ranks import comparison, phases
from annopipe.simulation.ranks import png as ranks_png

__all__ = ["Name", "commands", "names", "pages", "write"]

_WIDTH = 100
# By package, in the order of the table of contents: the page, its title, and what stands above its names.
PAGES = {
    "annotate": ("tags", "Tags", "Context managers and decorators for model code; see :doc:`/concepts`."),
    "graphs": ("graphs", "Graphs of a stage", "From a module to explicit graphs; see :doc:`/concepts`."),
    "ordering": ("overlap", "Overlap", "From a combined graph to the order in which it runs; see :doc:`/concepts`."),
    "costs": ("costs", "Costs", "How long nodes and actions take, ``annopipe.costs``; see :doc:`/concepts`."),
    "simulation": ("simulation", "Simulation", "When everything runs, of a plan or of a schedule."),
    "scheduling": ("schedules", "Schedules", "Which rank runs what, in which order; the guide is :doc:`/schedules`."),
    "tuning": ("tuning", "Tuning", "The search for a schedule; the guide is :doc:`/tuning`."),
    "pipeline": ("pipeline", "Training", "Run stages under a schedule; the guide is :doc:`/pipeline`."),
    "compiling": ("compiling", "Compiling", "Graphs compiled by Inductor, region by region, and CUDA graphs."),
    "kernels": ("kernels", "Kernels", "Operators on rows grouped by expert, ``annopipe.kernels``."),
    "errors": ("errors", "Errors", "What annopipe raises on purpose; :doc:`/troubleshooting` goes by what they say."),
    "models": ("models", "Models", "Tagged models for examples, tests and benchmarks, ``annopipe.models``."),
    "rewriters": ("rewriters", "Rewriters", "Codemods of model source; the guide is :doc:`/rewriters`."),
}
_OTHER_ROOMS = {
    "auxiliary": "annotate",
    "capturing": "compiling",
    "workloads": "tuning",
}  # what stands on the page of another
_CONSTANTS = {"UPSTREAM_TAGS": "graphs"}  # a tuple does not know where it comes from
# Modules whose functions and classes are public beside those of annopipe.
_MORE = {
    "costs": (ap.costs,),
    "scheduling": (ap.placement, shares),
    "simulation": (annopipe.simulation, png, comparison, phases, ranks_png),
    "kernels": (annopipe.kernels,),
    "models": (annopipe.models,),
    "rewriters": (rewriters, rewriters.reporting, rewriters.expert_parallel),
}


@dataclass(frozen=True)
class Name:
    """A public name: where it is to be found, and what is there."""

    path: str
    value: object

    @property
    def text(self) -> str:
        """What Sphinx is to put there; of a constant its items, which have no docstring."""
        if isinstance(self.value, type):
            kind = "exception" if issubclass(self.value, Exception) else "class"
            return f".. auto{kind}:: {self.path}\n" + "   :members:\n" * (kind == "class")
        if callable(self.value):
            return f".. autofunction:: {self.path}\n"
        items = "\n".join(map(repr, self.value)) if isinstance(self.value, tuple) else repr(self.value)
        return f".. py:data:: {self.path}\n\n   .. code-block:: python\n\n{_indented(_indented(items))}"


def names() -> dict[str, list[Name]]:
    """Every public name, by package; a name that two packages export stands where it comes from.

    >>> [name.path for name in names()["annotate"]][:2]
    ['annopipe.auxiliary_loss', 'annopipe.auxiliary_losses']
    """
    found: dict[str, list[Name]] = defaultdict(list, {package: [] for package in PAGES})
    for short in ap.__all__:
        value = getattr(ap, short)
        if not isinstance(value, ModuleType):
            found[_package(short, value)].append(Name(f"annopipe.{short}", value))
    for package, modules in _MORE.items():
        for module in modules:
            known = {id(name.value) for known in found.values() for name in known}
            found[package] += [name for name in _all_of(module) if id(name.value) not in known]
    return {package: sorted(there, key=lambda name: name.path.lower()) for package, there in found.items() if there}


def commands(
    command: click.Command = annopipe_command, parents: tuple[click.Context, ...] = ()
) -> Iterator[tuple[str, str]]:
    """Every command, groups first, with what its --help prints.

    >>> [name for name, _ in commands() if name.startswith("annopipe schedule s")]
    ['annopipe schedule show']
    """
    context = click.Context(
        command, parents[-1] if parents else None, command.name, terminal_width=_WIDTH, max_content_width=_WIDTH
    )
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            member = command.get_command(context, name)
            if member is not None:
                yield from commands(member, (*parents, context))


def pages() -> dict[str, str]:
    """The text of every page, in reStructuredText, by file name."""
    found = names()
    made = {f"{_page(package)[0]}.rst": _python_page(package, there) for package, there in found.items()}
    shown = (_page(package)[0] for package in found)
    made["index.rst"] = _titled("Reference", "Made from the docstrings, and from the help of the commands.") + (
        "\n.. toctree::\n" + "".join(f"   {page}\n" for page in (*shown, "commands"))
    )
    made["commands.rst"] = _titled("Commands", "What ``--help`` prints.") + "".join(
        f"\n{_titled(name, '', '-')}\n.. code-block:: text\n\n{_indented(text)}" for name, text in commands()
    )
    return made


def write(folder: Path) -> None:
    """Write the pages that changed, and remove those of names that are gone."""
    made = pages()
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.rst"):
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        path = folder / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def _package(short: str, value: object) -> str:
    room = _CONSTANTS.get(short) or str(getattr(value, "__module__", "annopipe.other")).split(".")[1]
    return _OTHER_ROOMS.get(room, room)


def _page(package: str) -> tuple[str, str, str]:
    return PAGES.get(package, (package, package.capitalize(), ""))


def _all_of(module: ModuleType) -> Iterable[Name]:
    there = {short: getattr(module, short) for short in module.__all__}
    return [Name(f"{module.__name__}.{short}", value) for short, value in there.items() if callable(value)]


def _python_page(package: str, there: list[Name]) -> str:
    _, title, head = _page(package)
    return _titled(title, head) + "".join(f"\n{name.text}" for name in there)


def _titled(title: str, head: str, line: str = "=") -> str:
    return f"{title}\n{line * len(title)}\n" + (f"\n{head}\n" if head else "")


def _indented(text: str) -> str:
    return "".join(f"   {line}".rstrip() + "\n" for line in text.splitlines())
