"""Rank program: the cases of another one, with runs of all graphs recorded and replayed on the processor.

arguments: the other program, and names of its cases; all of them if there are none
"""

import runpy
import sys

import annopipe as ap
from annopipe.capturing import graphs
from annopipe.capturing.worth import Weight
from tests.capturing.emulated import EmulatedRecorder


def main() -> None:
    """Have every pipeline capture whatever it can, and run the program."""
    program = sys.argv.pop(1)
    vars(graphs).update(CudaRecorder=EmulatedRecorder)
    Weight.gain_s = 1.0  # type: ignore[assignment]
    for makes in (ap.Pipeline.__init__, ap.attach):
        makes.__kwdefaults__["cuda_graphs"] = True
    runpy.run_module(f"tests.pipeline.{program}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
