"""``annopipe rewrite PATH...``: add, convert and remove tags in model source; shows a diff unless told to write."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from annopipe.errors import RewriteError

if TYPE_CHECKING:
    from rewriters import FileResult, Settings

__all__ = ["command"]

_ROLES = ("router", "count", "dispatch", "experts", "combine", "attention", "shared")
_STDIN = Path("-")


@click.command("rewrite")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path, allow_dash=True))
@click.option(
    "--select", multiple=True, metavar="CODES", help="Rules, or beginnings of codes: AP1,AP201; default AP1,AP302."
)
@click.option("--ignore", multiple=True, metavar="CODES", help="Rules to leave out.")
@click.option("--diff", is_flag=True, help="Show what would change (the default).")
@click.option("--check", is_flag=True, help="Name the files that would change.")
@click.option("--write", is_flag=True, help="Write the files.")
@click.option("--unsafe", is_flag=True, help="Allow rules and extents that change what the code does.")
@click.option("--role", type=click.Choice(_ROLES), help="What an all-to-all is where nothing tells.")
@click.option(
    "--extent",
    type=click.Choice(["statement", "block", "call"]),
    help="What a tag covers: a statement, neighbouring ones together, or (unsafe) the call alone.",
)
@click.option("--vocabulary", help="Words that AP202 writes: torchtitan, autoparallel, comm_region, annopipe.")
@click.option("--include-generated", is_flag=True, help="Also files that are generated from others.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="JSON: a record per site.")
@click.option("-v", "--verbose", is_flag=True, help="Name every site, not only those that somebody has to look at.")
@click.option("-j", "--jobs", type=click.IntRange(1), help="Processes; default: one per core.")
@click.option("--config", type=click.Path(path_type=Path), help="Instead of the nearest pyproject.toml.")
@click.option("--stdin-filename", default="<stdin>", help="What the text on standard input (PATH -) is called.")
@click.option("--exit-non-zero-on-change", is_flag=True, help="With --write, exit with 1 if a file changed.")
@click.option("--list", "lists", is_flag=True, help="List the rules.")
@click.option("--explain", metavar="CODE", help="Explain a rule, with its examples.")
def command(paths: tuple[Path, ...], **options: Any) -> int:
    """Add tags to model source, convert them, or take them out.

    PATH is a file, a folder or - for standard input. Options also come from [tool.annopipe.rewrite] in pyproject.toml.

    Exit codes: 0 nothing to do, or written; 1 there is something to change, or a finding is left; 2 misuse, or a file
    that cannot be rewritten.

    Examples: annopipe rewrite models/; annopipe rewrite models/ --write; annopipe rewrite models/ --select AP301
    """
    from rewriters import reporting

    if options["lists"]:
        click.echo(reporting.listing())
        return 0
    if options["explain"]:
        click.echo(reporting.explain(_rule(options["explain"])), nl=False)
        return 0
    if not paths:
        raise click.UsageError("name files or folders, or - for standard input")
    if options["diff"] + options["check"] + options["write"] > 1:
        raise click.UsageError("--diff, --check and --write exclude each other")
    if options["form"] == "json" and options["write"] and paths == (_STDIN,):
        raise click.UsageError("standard output cannot be JSON and the rewritten text: leave one out")
    results = _results(paths, options)
    failed = any(result.error for result in results)
    if options["form"] == "json":
        click.echo(reporting.json_records(results))
    else:
        _print(results, options)
    if options["write"]:
        _write(results, paths)
    click.echo(reporting.summary(results, written=options["write"]), err=True)
    if failed:
        return 2
    left = any(site.action == "reported" for result in results for site in result.sites)
    changed = any(result.changed for result in results)
    tells = not options["write"] or options["exit_non_zero_on_change"]
    return int(left or (changed and tells))


def _rule(code: str) -> Any:
    from rewriters import RULES

    if code not in RULES:
        raise click.UsageError(f"no rule {code!r}: annopipe rewrite --list shows them")
    return RULES[code]


def _settings(paths: tuple[Path, ...], options: dict[str, Any]) -> "Settings":
    from rewriters import Settings
    from rewriters.settings import load

    start = Path.cwd() if paths[0] == _STDIN else paths[0].resolve()
    fields = load(start, options["config"])
    for name in ("select", "ignore"):
        if options[name]:
            fields[name] = tuple(code for codes in options[name] for code in codes.replace(" ", "").split(",") if code)
    for name in ("role", "extent", "vocabulary"):
        if options[name] is not None:
            fields[name] = options[name]
    for name in ("unsafe", "include_generated"):
        if options[name]:
            fields[name] = True
    return Settings(**fields)


def _results(paths: tuple[Path, ...], options: dict[str, Any]) -> "list[FileResult]":
    from rewriters import rewrite
    from rewriters.files import find
    from rewriters.running import run

    settings = _settings(paths, options)
    if paths == (_STDIN,):
        return [rewrite(sys.stdin.buffer.read(), settings, options["stdin_filename"])]
    if _STDIN in paths:
        raise click.UsageError("- stands alone")
    return list(run(find(paths, settings.exclude), settings, options["jobs"]))


def _print(results: "list[FileResult]", options: dict[str, Any]) -> None:
    from rewriters import reporting

    for result in results:
        if result.error:
            click.echo(f"{result.path}: {result.error}", err=True)
        for site in result.sites:
            if options["verbose"] or site.action in ("refused", "reported"):
                click.echo(f"{result.path}:{site}", err=True)
        if result.changed and not options["check"] and not options["write"]:
            click.echo(reporting.diff(result), nl=False)
        elif result.changed and options["check"]:
            sites = sum(site.changes for site in result.sites)
            click.echo(f"{result.path}: {sites} {'place' if sites == 1 else 'places'} to change")


def _write(results: "list[FileResult]", paths: tuple[Path, ...]) -> None:
    from rewriters.files import write

    for result in results:
        if paths == (_STDIN,):
            sys.stdout.buffer.write(result.after)
            sys.stdout.buffer.flush()
        elif result.changed:
            try:
                write(Path(result.path), result.before, result.after)
            except RewriteError as error:
                raise click.ClickException(str(error)) from error
