"""Rank program: the cases of another one, with all graphs in stretches, which run as their forms say.

Whatever Inductor would compile is one function and runs where that would run, operation by operation: all but Inductor.

arguments: the other program, and names of its cases; all of them if there are none
"""

import functools
import runpy
import sys
import tempfile
from pathlib import Path

import annopipe as ap
from annopipe.compiling import building, inductor
from tests.compiling.interpreting import interpreted


def main() -> None:
    """Replace the compiler, have every pipeline use it, and run the program."""
    program = sys.argv.pop(1)
    with tempfile.TemporaryDirectory() as folder:  # of marks; empty, and left as it is by a rank that ends at once
        vars(inductor).update(
            compiler_folder=functools.partial(str, Path(folder)),
            compile_form=functools.cache(lambda form, _version: interpreted(form)),
            check_compiler=lambda: None,
        )
        vars(building).update(helpers_for=lambda _forms: 0)
        for makes in (ap.Pipeline.__init__, ap.attach):
            makes.__kwdefaults__["compile"] = "inductor"  # what no case says itself
        runpy.run_module(f"tests.pipeline.{program}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
