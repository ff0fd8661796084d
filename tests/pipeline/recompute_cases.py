"""Cases of a rank program: what a backward computes again, and what that leaves in memory."""

import itertools
import unittest.mock

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import annopipe as ap
from annopipe.costs.stored import stored_bytes
from annopipe.errors import CaptureError, PipelineError
from annopipe.graphs.meta import placement
from annopipe.pipeline.stages.stage import LocalStage
from tests.pipeline.trial import SCHEDULES, Trial, batches, close, refused

FORMS = (None, "mlp", ["mlp/wide", "head"], "all", 0.3, {0: "all"})


class Stage(nn.Module):
    """Two layers with dropout and running statistics; the last stage has a region of its own."""

    def __init__(self, stage, count, dropout=0.0, covered=False):
        super().__init__()
        self.layers = nn.ModuleList(Layer(dropout) for _ in range(2))
        self.norm, self.last, self.covered = nn.BatchNorm1d(6), stage == count - 1, covered

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.covered else layer(x)
        x = self.norm(x)
        if self.last:
            with ap.region("head"):
                x = x.sin().exp()
        return x


class Layer(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.up, self.down, self.dropout = nn.Linear(6, 24), nn.Linear(24, 6), nn.Dropout(dropout)

    def forward(self, x):
        with ap.region("mlp"):
            with ap.region("wide"):
                y = F.gelu(self.up(x)).sin()
            return x + self.dropout(self.down(y))


def gradients_are_those_of_the_unsplit_model_whatever_is_computed_again():
    names = itertools.cycle(SCHEDULES)
    for form in FORMS[1:]:
        Trial(Stage, next(names), recompute=form).both(batches(3))


def dropout_and_buffers_are_the_same_with_and_without():
    for name in SCHEDULES[-1:]:
        found = []
        for form, covered in ((None, False), ("all", False), (None, True)):
            trial = Trial(
                lambda stage, count, on=covered: Stage(stage, count, dropout=0.4, covered=on), name, recompute=form
            )
            torch.manual_seed(trial.rank)
            trial.pipe.step_microbatches(*zip(*batches(3), strict=True))
            buffers = [b for module in trial.mine.values() for b in module.buffers()]
            found.append([*(p.grad for p in trial.pipe.parameters()), *buffers, torch.get_rng_state()])
        assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


class Kept:
    """What the stages of this rank keep, in bytes by stage and microbatch, each storage once, without the module's."""

    def __init__(self):
        self.now, self.most, self.stages = {}, 0, {}
        self.after: dict[str, dict] = {"F": {}, "I": {}}
        self._finish = LocalStage.finish

    def __enter__(self):
        own = self

        def finish(stage, kind, microbatch, results):
            found = own._finish(stage, kind, microbatch, results)
            own.stages[stage.index] = stage
            if kind in ("B", "W"):
                del own.now[stage.index, microbatch]
                return found
            size = own.size(stage, microbatch)
            own.now[stage.index, microbatch] = size
            own.after[kind].setdefault(stage.index, set()).add(size)
            own.most = max(own.most, sum(own.now.values()))
            return found

        self._patch = unittest.mock.patch.object(LocalStage, "finish", finish)
        self._patch.start()
        return self

    def __exit__(self, *_):
        self._patch.stop()

    @staticmethod
    def size(stage, microbatch):
        module = stage.module
        lasting = {t.untyped_storage().data_ptr() for t in (*module.parameters(), *module.buffers())}
        tensors = [value for value in stage.kept(microbatch).values() if isinstance(value, torch.Tensor)]
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
        return sum(size for at, size in storages.items() if at not in lasting)


def a_rank_keeps_as_many_bytes_as_the_simulator_says():
    most = {}
    for name, form in (("1f1b", None), ("1f1b", "mlp"), ("1f1b", 0.3), ("zbv", None), ("zbv", "all")):
        trial = Trial(Stage, name, 5, recompute=form)
        calls: list = [((x.clone(),), {}, y.clone()) for (x,), _, y in batches(5)]  # they are halves of tensors
        with Kept() as kept:
            trial.pipe.step_microbatches(*zip(*calls, strict=True))
        for index, stage in kept.stages.items():
            told = stored_bytes(stage.graphs)
            assert kept.after["F"][index] == {told.activation}, (name, form, kept.after, told)
            assert kept.after["I"].get(index, {told.kept_for_weight}) == {told.kept_for_weight}, (
                name,
                form,
                kept.after,
            )
        some = next(iter(kept.stages.values())).graphs  # for the stages of other ranks, which do not count here
        graphs = {s: kept.stages[s].graphs if s in kept.stages else some for s in range(trial.placement.stages)}
        costs = ap.costs.actions(graphs, lambda graph: ap.costs.roofline(graph, "h100"))
        parameters = sum(costs.parameters[stage] for stage in kept.stages)
        expected = ap.simulate(trial.pipe.schedule, costs).peaks[trial.rank] - parameters
        assert kept.most == round(expected), (name, form, kept.most, expected)
        most[name, str(form)] = kept.most
    assert max(most["1f1b", "0.3"], most["1f1b", "mlp"]) < most["1f1b", "None"]
    assert most["zbv", "all"] < most["zbv", "None"]


def a_region_that_no_stage_has_is_refused_everywhere():
    trial = Trial(Stage, recompute="experts")
    refused(
        PipelineError,
        "recompute: no stage has a region 'experts'; they have mlp/wide, mlp, head",
        lambda: trial.pipe.step_microbatches(*zip(*batches(3), strict=True)),
    )
    refused(PipelineError, "recompute names stage 99: the stages are 0 to", lambda: Trial(Stage, recompute={99: "all"}))
    refused(CaptureError, "recompute=1.5: a memory budget is a share", lambda: Trial(Stage, recompute=1.5))


def evaluation_computes_nothing_again():
    trial = Trial(Stage, recompute="all")
    calls = batches(3)
    began, begin = [], LocalStage.begin_step
    with unittest.mock.patch.object(LocalStage, "begin_step", lambda *given: began.append(given[0]) or begin(*given)):
        outputs = trial.pipe.eval(torch.cat([x for (x,), _, _ in calls]))
        evaluated = [stage.graphs for stage in began]
        began.clear()
        trial.pipe.step_microbatches(*zip(*calls, strict=True))
    assert len(evaluated) == len(began) == len(trial.mine)
    assert all(graphs.backward is None and "recompute" not in phases(graphs.forward) for graphs in evaluated)
    assert all("recompute" in phases(stage.graphs.backward) for stage in began)
    for module in trial.whole:
        module.eval()
    assert (outputs is not None) == trial.pipe.holds_last
    for (args, _, _), output in zip(calls, outputs or [], strict=outputs is not None):
        close(output, trial.forward(args).detach(), "output")


def phases(graph):
    places = (placement(node) for node in graph.graph.nodes)
    return {place.phase for place in places if place is not None}


CASES = (
    gradients_are_those_of_the_unsplit_model_whatever_is_computed_again,
    dropout_and_buffers_are_the_same_with_and_without,
    a_rank_keeps_as_many_bytes_as_the_simulator_says,
    a_region_that_no_stage_has_is_refused_everywhere,
    evaluation_computes_nothing_again,
)
