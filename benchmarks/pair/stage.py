"""A traced stage with two microbatches: lane B is the backward of one, lane F the forward of the next; or one alone."""

import dataclasses
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import annopipe as ap
from annopipe.models import DeepSeekV3Config, DeepSeekV3Stage, Routing
from annopipe.models.router import Router
from benchmarks.pair.case import Case

__all__ = ["Pair", "differing"]


class Pair:
    """The combined graph of a stage, values for its ports, and the same by eager autograd.

    Attributes:
        graphs: forward and backward of the stage.  both: the combined graph, lanes B and F, or one of them.
        lanes: these lanes.
        values: a value for every input port of ``both``.
    """

    def __init__(
        self, case: Case, group: dist.ProcessGroup | None, device: torch.device, *, strict: bool = False
    ) -> None:
        rank = 0 if group is None else dist.get_rank(group)
        # On a GPU in bfloat16, for which there are grouped kernels that read nothing on the host.
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.stage: nn.Module = DeepSeekV3Stage(_model(case), group=group, seed=case.seed, device=device, dtype=dtype)
        generator = torch.Generator().manual_seed(case.seed * 1000 + rank)
        shape = (case.batch, case.sequence, case.hidden)
        self.backward_input, self.forward_input, self.tangent = (
            torch.randn(shape, generator=generator).to(device, dtype) for _ in range(3)
        )
        self.graphs = ap.trace(self.stage, (self.backward_input.clone().requires_grad_(),), strict=strict)
        if self.graphs.backward is None:
            raise ap.CaptureError("the stage has no backward: its parameters must require grad")
        named = {"B": self.graphs.backward, "F": self.graphs.forward}
        self.lanes = {"pair": ("B", "F"), "forward": ("F",), "backward": ("B",)}[case.graph]
        self.both = ap.multiplex(*(named[lane] for lane in self.lanes), lanes=self.lanes)
        bound = self.graphs.bind(self.stage)
        first = {**bound, **self.graphs.bind_inputs(self.backward_input)}
        saved = self.graphs.forward(first)
        second = {**bound, **self.graphs.bind_inputs(self.forward_input)}
        backward = {**first, **saved, "tangent.output": self.tangent}
        values = {"B": backward, "F": second}
        self.values: dict[str, Any] = {}
        for lane in self.lanes:
            self.values |= ap.into_lane(values[lane], lane)

    def eager_backward_ready(self) -> tuple[Tensor, list[Tensor]]:
        """The eager output of the first microbatch, and what to differentiate it by: parameters and input."""
        x = self.backward_input.clone().requires_grad_()
        with torch.enable_grad():
            return self.stage(x), [*self.stage.parameters(), x]

    def eager(self, output: Tensor, wanted: list[Tensor]) -> tuple[tuple[Tensor, ...], Tensor | None]:
        """By eager autograd: gradients of the first microbatch, then the output of the second; of its lanes."""
        gradients = torch.autograd.grad(output, wanted, self.tangent) if "B" in self.lanes else ()
        if "F" not in self.lanes:
            return gradients, None
        with torch.enable_grad():
            return gradients, self.stage(self.forward_input.clone().requires_grad_()).detach()

    def expert_loads(self) -> list[list[int]]:
        """Tokens that this rank sends to each expert in the forward, router by router."""
        loads: list[list[int]] = []

        def count(router: nn.Module, _args: tuple[Any, ...], route: Any) -> None:
            experts = route.experts.flatten()
            loads.append(torch.bincount(experts, minlength=router.get_parameter("weight").shape[0]).tolist())

        hooks = [part.register_forward_hook(count) for part in self.stage.modules() if isinstance(part, Router)]
        with torch.no_grad():
            self.stage(self.forward_input)
        for hook in hooks:
            hook.remove()
        return loads

    def differences(self, result: dict[str, Any]) -> list[str]:
        """Names of the gradients and outputs of ``result`` that are not bitwise equal to eager autograd's."""
        gradients, output = self.eager(*self.eager_backward_ready())
        wrong = [] if output is None or torch.equal(result["F.output"], output) else ["output"]
        if "B" not in self.lanes:
            return wrong
        names = [*(name for name, _ in self.stage.named_parameters()), "input"]
        expected = dict(zip(names, gradients, strict=True))
        found = self.graphs.parameter_gradients(ap.out_of_lane(result, "B"))
        found["input"] = result["B.input_grad.x"]
        return wrong + [name for name in names if name not in found or not torch.equal(expected[name], found[name])]


def differing(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """Names of values that are not bitwise equal; tensors or numbers."""

    def same(a: Any, b: Any) -> bool:
        return torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else bool(a == b)

    return [name for name in expected if not same(found[name], expected[name])]


def _model(case: Case) -> DeepSeekV3Config:
    """Every block has experts."""
    return dataclasses.replace(
        DeepSeekV3Config.small(),
        layers=case.blocks,
        dense_layers=0,
        hidden=case.hidden,
        moe_intermediate=case.expert_hidden,
        experts=case.experts,
        top_k=case.top_k,
        routing=Routing(case.routing, exponent=case.skew, seed=case.seed),
        nano_batches=case.nano_batches,
        nano_batched=case.nano_batched,
    )
