"""One group of checks in this process: ``python -m benchmarks.gpu_check.worker GROUP cuda``, under ``run_ranks``.

Prints the machine as one line of JSON that starts with "machine:", then a line that starts with "result:" after each
check.
"""

import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.gpu_check import alone, captured, copies, experts, kernels
from benchmarks.gpu_check.checklist import Checklist
from benchmarks.launch import end_rank

__all__ = ["main"]

_GROUPS: dict[str, Callable[[Checklist, torch.device], None]] = {
    "alone": alone.run,
    "experts": experts.run,
    "copies": copies.run,
    "kernels": kernels.run,
    "captured": captured.run,
}


def main() -> None:
    """Run the group that the command line names."""
    group, kind = sys.argv[1:]
    torch.set_num_threads(1)
    device = torch.device(kind)
    if kind == "cuda":
        device = torch.device("cuda", 0)
        torch.cuda.set_device(device)
        torch.backends.cuda.enable_flash_sdp(False)  # only the plain kernels add in a fixed order in the backward
        torch.backends.cuda.enable_mem_efficient_sdp(False)
        torch.backends.cuda.enable_cudnn_sdp(False)
    _tell("machine", _machine(device))
    _GROUPS[group](Checklist(group, lambda result: _tell("result", result)), device)
    end_rank()


def _tell(kind: str, what: dict[str, Any]) -> None:
    print(f"{kind}:{json.dumps(what)}", flush=True)


def _machine(device: torch.device) -> dict[str, Any]:
    """The card and every version that results may depend on."""
    found: dict[str, Any] = {"torch": torch.__version__, "python": platform.python_version(), "card": "no GPU"}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found["card"] = torch.cuda.get_device_name(device)
        found["memory_bytes"] = properties.total_memory
        found["multiprocessors"] = properties.multi_processor_count
        found["capability"] = ".".join(map(str, torch.cuda.get_device_capability(device)))
        found["cuda"] = torch.version.cuda
        found["cudnn"] = torch.backends.cudnn.version()
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        found["driver"] = _driver()
    return found


def _driver() -> str:
    if shutil.which("nvidia-smi") is None:
        return "unknown"
    program = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    asked = subprocess.run(program, capture_output=True, text=True, check=False, timeout=20)
    return asked.stdout.strip().partition("\n")[0] or "unknown"


if __name__ == "__main__":
    main()
