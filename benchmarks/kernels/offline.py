"""Compile the kernels for GPUs that are not here, and read from the binaries what a program takes of a multiprocessor.

Triton compiles without a GPU; ``cuobjdump``, which comes with it, prints the resources that the assembler recorded. A
register that is spilled lies on the stack: a kernel without spills has a stack of 0 bytes.
"""

import dataclasses
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import triton
from tabulate import tabulate
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from annopipe.errors import CostError
from benchmarks.kernels.variants import TARGETS, Variant, variants

__all__ = ["Resources", "report", "resources", "table"]

_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)")
_INSTRUCTIONS = ("wgmma", "tcgen05.mma", "mma.sync")


@dataclasses.dataclass(frozen=True)
class Resources:
    """What one form of a kernel takes.

    target: compute capability without the dot.  registers: of a thread.  spilled_bytes: of a thread, on the stack.
    shared_bytes: of a program.  instruction: which one multiplies matrices.
    """

    target: int
    kernel: str
    form: str
    tile: str
    warps: int
    stages: int
    registers: int
    spilled_bytes: int
    shared_bytes: int
    instruction: str


def report(targets: Iterable[int] = TARGETS, *, quick: bool = False) -> Iterator[Resources]:
    """The resources of every form that may run on the targets; quick: of a few typical ones."""
    for target in targets:
        yield from (resources(variant, target) for variant in variants(target) if variant.typical or not quick)


def resources(variant: Variant, target: int) -> Resources:
    """Compile one form for one target.

    Raises:
        CostError: the resource report of the binary cannot be read.
    """
    names = variant.kernel.arg_names
    places = {name: (names.index(name),) for name in names}
    source = ASTSource(
        fn=variant.kernel,
        signature={name: variant.types.get(name, "constexpr") for name in names},
        constexprs={places[name]: value for name, value in variant.constants.items()},
        attrs={places[name]: [["tt.divisibility", 16]] for name in variant.divided()},
    )
    options = {"num_warps": variant.warps, "num_stages": variant.stages}
    compiled = triton.compile(source, target=GPUTarget("cuda", target, 32), options=options)
    registers, stack, local = _usage(compiled.asm["cubin"])
    found = [name for name in _INSTRUCTIONS if name in compiled.asm["ptx"]]
    return Resources(
        *(target, variant.name, variant.form, variant.tile, variant.warps, variant.stages),
        *(registers, stack + local, compiled.metadata.shared, found[0] if found else ""),
    )


def table(found: Iterable[Resources]) -> str:
    """One line for each form."""
    rows = [(f"sm_{one.target}", *dataclasses.astuple(one)[1:]) for one in found]
    headers = ("target", "kernel", "form", "tile", "warps", "stages", "registers", "spilled", "shared", "instruction")
    return tabulate(rows, headers=headers)


def _usage(binary: bytes) -> tuple[int, int, int]:
    """Registers, bytes of stack and local bytes of the only kernel in a binary."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(binary)
        program = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(path)]
        said = subprocess.run(program, capture_output=True, text=True, check=False, timeout=60)
    usage = _USAGE.search(said.stdout)
    if usage is None:
        raise CostError(f"cuobjdump does not say what the kernel takes: {(said.stderr or said.stdout).strip()}")
    registers, stack, local = map(int, usage.groups())
    return registers, stack, local
