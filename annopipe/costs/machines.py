"""The machines that ``ap.costs.roofline`` knows by name, with the source of every number.

Peaks are the vendors', dense (a datasheet's "with sparsity" is halved). What kernels attain of them:
    matrix products   0.7    cuBLAS on large bfloat16 products: 650 to 800 of the H100's 989 TFLOP/s
    attention         0.6    FlashAttention-3 (arXiv 2407.08608): up to 740 of 989 forward, about 550 to 600 backward
    memory            0.85   copies and elementwise kernels on HBM
    NVLink            0.8    160 of 200 GB/s on an H800 (arXiv 2412.19437, section 3.2.2); NCCL alike on an H100
    network           0.9    45 of 50 GB/s on a ConnectX-7 port, message headers and imperfect routing taken off
Times: a message takes 3.4 us to the next rank over NVLink and 14 us over the network, and a collective 8.4 us to start
(the constants of NCCL's own tuning model for its Simple protocol, src/graph/tuning.cc). A kernel that does nothing
takes about 3 us on the device; a host read (copy of a few bytes, and the stream's pipeline filled again) 15 us.
"""

import re
from types import MappingProxyType

from annopipe.costs.hardware import Hardware, Link
from annopipe.errors import CostError

__all__ = ["MACHINES", "machine", "machine_of"]

_SLOWER = frozenset({"pcie", "nvl", "40gb"})
_COLLECTIVES = {
    "collective_start_s": "NCCL src/graph/tuning.cc, ring, Simple protocol",
    "ranks_per_node": "HGX and DGX boards carry 8 GPUs",
}


def _machine(
    name: str,
    *,
    tflops: dict[str, float],
    memory_bandwidth: float,
    nvlink_bandwidth: float,
    network_bandwidth: float,
    sources: dict[str, str],
) -> Hardware:
    return Hardware(
        name=name,
        peak_flops={dtype: value * 1e12 for dtype, value in tflops.items()},
        memory_bandwidth=memory_bandwidth,
        inside=Link(nvlink_bandwidth, fraction=0.8, hop_s=3.4e-6),
        between=Link(network_bandwidth, fraction=0.9, hop_s=14e-6),
        collective_start_s=8.4e-6,
        sources={**_COLLECTIVES, **sources},
    )


_HOPPER = {"float64": 66.9, "float32": 66.9, "bfloat16": 989.4, "float8_e4m3fn": 1978.9, "int8": 1978.9}
_MACHINES = (
    _machine(
        "a100",
        tflops={"float64": 19.5, "float32": 19.5, "bfloat16": 312.0, "int8": 624.0},
        memory_bandwidth=2.039e12,
        nvlink_bandwidth=300e9,
        network_bandwidth=25e9,
        sources={
            "peak_flops": "NVIDIA A100 datasheet, SXM4 80 GB; float32 without TF32, as PyTorch multiplies by default",
            "memory_bandwidth": "NVIDIA A100 datasheet, SXM4 80 GB",
            "inside": "NVIDIA A100 datasheet: NVLink 600 GB/s, both directions together",
            "between": "NVIDIA DGX A100 datasheet: one HDR InfiniBand port (200 Gb/s) per GPU",
        },
    ),
    _machine(
        "h100",
        tflops=_HOPPER,
        memory_bandwidth=3.35e12,
        nvlink_bandwidth=450e9,
        network_bandwidth=50e9,
        sources={
            "peak_flops": "NVIDIA H100 datasheet, SXM5; float32 without TF32, as PyTorch multiplies by default",
            "memory_bandwidth": "NVIDIA H100 datasheet, SXM5",
            "inside": "NVIDIA H100 datasheet: NVLink 900 GB/s, both directions together",
            "between": "NVIDIA DGX H100 datasheet: one ConnectX-7 port (400 Gb/s) per GPU",
        },
    ),
    _machine(
        "h200",
        tflops=_HOPPER,
        memory_bandwidth=4.8e12,
        nvlink_bandwidth=450e9,
        network_bandwidth=50e9,
        sources={
            "peak_flops": "NVIDIA H200 datasheet, SXM; float32 without TF32, as PyTorch multiplies by default",
            "memory_bandwidth": "NVIDIA H200 datasheet, SXM",
            "inside": "NVIDIA H200 datasheet: NVLink 900 GB/s, both directions together",
            "between": "NVIDIA DGX H200 datasheet: one ConnectX-7 port (400 Gb/s) per GPU",
        },
    ),
    _machine(
        "h800",
        tflops={**_HOPPER, "float64": 1.0},
        memory_bandwidth=3.35e12,
        nvlink_bandwidth=200e9,
        network_bandwidth=50e9,
        sources={
            "peak_flops": "an H100 SXM5 with float64 cut to 1 TFLOP/s (NVIDIA H800 product brief)",
            "memory_bandwidth": "as H100 SXM5",
            "inside": "NVIDIA H800 product brief: NVLink 400 GB/s, both directions together",
            "between": "DeepSeek-V3 report (arXiv 2412.19437), section 3.2.2: InfiniBand, 50 GB/s per GPU",
        },
    ),
    _machine(
        "b200",
        tflops={"float64": 37.0, "float32": 75.0, "bfloat16": 2250.0, "float8_e4m3fn": 4500.0, "int8": 4500.0},
        memory_bandwidth=8e12,
        nvlink_bandwidth=900e9,
        network_bandwidth=50e9,
        sources={
            "peak_flops": "NVIDIA HGX B200 datasheet, per GPU; float32 without TF32, as PyTorch multiplies by default",
            "memory_bandwidth": "NVIDIA DGX B200 datasheet: 64 TB/s for 8 GPUs",
            "inside": "NVIDIA HGX B200 datasheet: NVLink 1.8 TB/s, both directions together",
            "between": "NVIDIA DGX B200 datasheet: one ConnectX-7 port (400 Gb/s) per GPU",
        },
    ),
)
MACHINES = MappingProxyType({entry.name: entry for entry in _MACHINES})


def machine_of(device_name: str) -> Hardware | None:
    """The entry for a GPU as its driver names it, None where the table has none (slower variants have other numbers).

    >>> machine_of("NVIDIA H100 80GB HBM3").name
    'h100'
    """
    words = set(re.split(r"[^a-z0-9]+", device_name.lower()))
    if words & _SLOWER:
        return None
    return next((entry for name, entry in MACHINES.items() if name in words), None)


def machine(name: str) -> Hardware:
    """The machine of that name.

    Raises:
        CostError: the table has none; "cpu" is not in it, since it is measured where it is asked for.

    >>> machine("h100").memory_bandwidth
    3350000000000.0
    """
    found = MACHINES.get(name.lower()) if isinstance(name, str) else None
    if found is None and name == "cpu":
        raise CostError(
            "the table has no 'cpu', which is measured where hardware='cpu' is given: name another, or do that"
        )
    if found is None:
        raise CostError(
            f"there is no hardware {name!r}: the names are {', '.join(MACHINES)} and cpu; describe another machine "
            "with ap.costs.Hardware(...) or ap.costs.Hardware.from_toml(path)"
        )
    return found
