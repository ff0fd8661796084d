"""``annopipe bench tuning-small``: small instances of the suite beside the optimum of their orders."""

import click

__all__ = ["command"]


@click.command("tuning-small")
@click.option("--workload", "names", multiple=True, help="Repeatable; all of the suite by default.")
@click.option("--effort", type=click.IntRange(1), default=100_000, show_default=True, help="Of each search.")
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    default=20.0,
    show_default=True,
    help="Of the solver, for each instance.",
)
@click.option("--ranks", type=click.IntRange(2), default=3, show_default=True, help="Of an instance.")
@click.option("--microbatches", type=click.IntRange(1), default=4, show_default=True, help="Of an instance.")
def command(names: tuple[str, ...], *, effort: int, seconds: float, ranks: int, microbatches: int) -> None:
    """What is found for small instances of the suite, beside what CP-SAT proves of their orders (extra "optimal").

    The stages and combined actions are those that were found; every order of them is looked at.
    """
    try:
        from benchmarks.tuning.optimum import measured
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{error}: install OR-tools with pip install 'annopipe[optimal]'") from error
    from tabulate import tabulate

    from benchmarks.tuning.command import suite

    rows = []
    for work in suite(names):
        step, proof = measured(work, ranks=ranks, microbatches=microbatches, effort=effort, seconds=seconds)
        said = "optimal" if proof.proven else "best known"
        rows.append(
            (work.name, f"{step:.5g}", f"{proof.step:.5g}", said, f"{step / proof.step:.3f}", f"{proof.bound:.5g}")
        )
        click.echo(f"{work.name}: {step / proof.step:.3f} of the {said} order", err=True)
    click.echo(tabulate(rows, ("workload", "found", "CP-SAT", "which is", "ratio", "bound"), disable_numparse=True))
    click.echo(f"\nsimulated; {ranks} ranks, {microbatches} microbatches")
