"""Labs by hand: run a command on every rank of one, or remove those that a crash left behind."""

import sys

import click

from annopipe.errors import AnnopipeError
from benchmarks.launch import rank_environment
from benchmarks.netlab import NetLab, available, sweep
from benchmarks.processes import run_group

_PORT = 29500


@click.group()
def main() -> None:
    """Rate-limited networks of namespaces on this machine."""


@main.command("available")
def show_available() -> None:
    """Say whether labs work here, and why not."""
    reason = available()
    print(reason or "network labs work here")
    sys.exit(reason is not None)


@main.command("sweep")
def show_sweep() -> None:
    """Remove the labs of processes that are gone."""
    for lab in sweep():
        print(f"removed {lab}")


@main.command()
@click.option("--ranks", default=2, show_default=True)
@click.option("--rate", default="400mbit", show_default=True)
@click.option("--burst", default="16kb", show_default=True)
@click.option("--shared/--own", default=False, show_default=True, help="one limit for all ranks, or one for each")
@click.option("--timeout", "timeout_s", default=3600.0, show_default=True, help="seconds")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(ranks: int, rate: str, burst: str, timeout_s: float, command: tuple[str, ...], *, shared: bool) -> None:
    """Run COMMAND on every rank, with torchrun's environment variables; print what each rank printed."""
    with NetLab(ranks, rate, burst, shared=shared) as lab:
        commands = [lab.command(rank, command) for rank in range(ranks)]
        environments = [rank_environment(rank, ranks, lab, _PORT) for rank in range(ranks)]
        outputs = run_group(
            commands,
            environments,
            what=command[0],
            timeout_s=timeout_s,
            on_line=lambda rank, line: print(f"{rank}: {line}"),
        )
    for rank, output in enumerate(outputs[1:], start=1):
        for line in output.splitlines():
            print(f"{rank}: {line}")


if __name__ == "__main__":
    try:
        main()
    except AnnopipeError as error:
        sys.exit(f"error: {error}")
