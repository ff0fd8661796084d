"""``annopipe doctor``: what this machine can run, and what is missing for the rest."""

import importlib.metadata
import importlib.util
import json
import platform
from dataclasses import asdict, dataclass

import click

from annopipe.processors import processors

__all__ = ["command"]

_REQUIRED = frozenset({"python", "torch", "gloo"})
_OLDEST, _NEWEST = (2, 11), (2, 15)


@dataclass(frozen=True)
class Finding:
    """One line of the report: what was looked at, whether it is there, and what it means."""

    what: str
    ok: bool
    detail: str


def findings() -> list[Finding]:
    """Everything the commands and the test suite may need."""
    import torch
    import torch.distributed as dist

    from benchmarks import netlab

    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    lab = netlab.available()
    gpus = torch.cuda.device_count()
    distributed = dist.is_available()
    nccl = distributed and dist.is_nccl_available()
    names = ", ".join(torch.cuda.get_device_name(index) for index in range(gpus))
    triton = importlib.util.find_spec("triton") is not None
    cores = processors()
    return [
        Finding("python", True, platform.python_version()),
        Finding(
            "torch",
            _OLDEST <= version <= _NEWEST,
            f"{torch.__version__}; supported: {_OLDEST[0]}.{_OLDEST[1]} to {_NEWEST[0]}.{_NEWEST[1]}",
        ),
        Finding("processor cores", True, f"{cores}; with more ranks than cores only paced times mean anything"),
        Finding("gloo", distributed and dist.is_gloo_available(), "ranks as processes on CPU"),
        Finding("rate-limited network", lab is None, lab or "network namespaces with tc: bench overlap uses them"),
        Finding("GPU", gpus > 0, names or "none; bench overlap runs on CPU, gpu_check needs one"),
        Finding("NCCL", nccl, "ranks on GPUs" if nccl else "not in this torch"),
        Finding("triton", triton, _version_of("triton") if triton else "not installed"),
    ]


def _version_of(module: str) -> str:
    """The version of the distribution that a module comes from, which may have another name."""
    names = importlib.metadata.packages_distributions().get(module, [])
    return importlib.metadata.version(names[0]) if names else "of unknown version"


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(*, as_json: bool) -> None:
    """Say what this machine can run; exit code 1 if annopipe cannot run at all."""
    from tabulate import tabulate

    found = findings()
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in found], indent=1))
    else:
        click.echo(
            tabulate([(f.what, "yes" if f.ok else "no", f.detail) for f in found], headers=("what", "there", "detail"))
        )
    if not all(finding.ok for finding in found if finding.what in _REQUIRED):
        raise click.exceptions.Exit(1)
