"""``annopipe bench rewrite``: how long it takes to tag files, and what of that is libcst's parsing and positions."""

import dataclasses
import json
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import click
from tabulate import tabulate

from annopipe.errors import RewriteError
from rewriters.engine import rewrite
from rewriters.files import find
from rewriters.reading import read
from rewriters.running import run
from rewriters.settings import Settings
from rewriters.source import parse

__all__ = ["LIMIT_S", "Measured", "command", "measure"]

LIMIT_S = 90.0  # for the 74 files of transformers 5.24 that call experts, on two cores
_SAMPLE = 10  # files that are timed step by step


@dataclasses.dataclass(frozen=True)
class Measured:
    """Times of one run, in seconds."""

    files: int
    sites: int
    jobs: int
    wall_s: float
    per_file_s: float
    parse_share: float
    positions_share: float


def measure(paths: Sequence[Path], jobs: int) -> Measured:
    """Tag files, in memory, with every check; then time the steps of some of them."""
    settings = Settings(include_generated=True)
    begin = time.perf_counter()
    results = list(run(paths, settings, jobs))
    wall = time.perf_counter() - begin
    failed = [f"{result.path}: {result.error}" for result in results if result.error]
    if failed:
        raise RewriteError(failed[0])
    sites = sum(site.changes for result in results for site in result.sites)
    total = parsing = positions = 0.0
    for path in paths[:_SAMPLE]:
        data = path.read_bytes()
        start = time.perf_counter()
        source = parse(data)
        parsed = time.perf_counter()
        reading = read(source)
        numbered = time.perf_counter()
        reading.lines(source.tree.body[0])
        numbered_end = time.perf_counter()
        rewrite(data, settings)
        total += time.perf_counter() - numbered_end
        parsing += parsed - start
        positions += numbered_end - numbered
    # Input and output are parsed; lines are looked up once.
    return Measured(len(paths), sites, jobs, wall, total / len(paths[:_SAMPLE]), 2 * parsing / total, positions / total)


def _models_of_transformers() -> list[Path]:
    spec = find_spec("transformers")
    if spec is None or not spec.submodule_search_locations:
        raise click.UsageError("name files or folders: transformers, whose models are the default, is not installed")
    folder = Path(spec.submodule_search_locations[0]) / "models"
    return [path for path in sorted(folder.glob("*/modeling_*.py")) if b"self.experts" in path.read_bytes()]


@click.command("rewrite")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path, exists=True))
@click.option("--calling", default="", help="Only files that hold this text, such as 'self.experts('.")
@click.option("-j", "--jobs", type=click.IntRange(1), default=2, show_default=True, help="Processes.")
@click.option("--check", is_flag=True, help=f"Fail if it takes more than {LIMIT_S:g} s.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(paths: tuple[Path, ...], calling: str, jobs: int, *, check: bool, as_json: bool) -> int:
    """Time the tagging of files (default: the models with experts of the installed transformers); writes nothing."""
    files = find(paths) if paths else _models_of_transformers()
    files = [path for path in files if calling.encode() in path.read_bytes()]
    if not files:
        raise click.UsageError("no Python file there")
    found = measure(files, jobs)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(found), indent=1))
    else:
        row = (found.files, found.sites, jobs, found.wall_s, found.per_file_s, found.parse_share, found.positions_share)
        headers = ("files", "sites", "processes", "seconds", "s per file", "of it parsing", "of it positions")
        click.echo("measured on this machine")
        click.echo(tabulate([row], headers=headers, floatfmt=".2f"))
    return int(check and found.wall_s > LIMIT_S)
