"""What a user gets wrong around graphs is refused: the message names the thing and the remedy."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import annopipe as ap


def test_an_lstm_whose_dropout_would_be_lost_is_refused() -> None:
    lstm = nn.LSTM(4, 4, 2, dropout=0.5)
    with pytest.raises(ap.CaptureError, match="an LSTM with dropout between its layers"):
        ap.trace(lstm, (torch.ones(3, 1, 4),))
    assert ap.trace(lstm.eval(), (torch.ones(3, 1, 4),)).forward is not None


@pytest.mark.parametrize("hook", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_hook_on_a_parameter_is_refused(hook: str) -> None:
    module = nn.Linear(4, 3)
    getattr(module.weight, hook)(lambda grad: None)
    with pytest.raises(ap.CaptureError, match="weight of the module has a hook on its gradient"):
        ap.trace(module, (torch.ones(2, 4),))


def test_a_module_that_is_compiled_in_place_is_refused() -> None:
    module = nn.Linear(4, 3)
    module.compile()
    with pytest.raises(ap.CaptureError, match="is compiled already"):
        ap.trace(module, (torch.ones(2, 4),))


@pytest.mark.parametrize("was_tied", [True, False])
def test_weights_that_are_tied_in_another_way_are_refused(was_tied: bool) -> None:
    def pair(*, tied: bool) -> nn.Module:
        first, second = nn.Linear(4, 4), nn.Linear(4, 4)
        if tied:
            second.weight = first.weight
        return nn.Sequential(first, second)

    graphs = ap.trace(pair(tied=was_tied), (torch.ones(2, 4),))
    graphs.bind(pair(tied=was_tied))
    with pytest.raises(ap.CaptureError, match="tied to others in another way"):
        graphs.bind(pair(tied=not was_tied))


def test_two_lanes_that_update_one_buffer_are_refused() -> None:
    graphs = ap.trace(nn.BatchNorm1d(4), (torch.ones(2, 4),))
    with pytest.raises(ap.GraphError, match="lanes F0 and F1 both update buffer running_mean"):
        ap.multiplex(graphs.forward, graphs.forward, lanes=("F0", "F1"))


def test_graphs_in_place_of_one_graph_are_refused() -> None:
    graphs = ap.trace(nn.Linear(4, 3), (torch.ones(2, 4),))
    for call in (lambda: ap.multiplex(graphs), lambda: ap.region_table(graphs)):
        with pytest.raises(ap.GraphError, match="takes? stage graphs?, got StageGraphs|takes a stage graph, got"):
            call()
    with pytest.raises(ap.GraphError, match="a mapping from port name to value, got Tensor"):
        graphs.forward(torch.ones(2, 4))
    with pytest.raises(ap.CaptureError, match="kwargs is a dictionary"):
        ap.trace(nn.Linear(4, 3), (torch.ones(2, 4),), torch.ones(2))


def test_lanes_are_put_in_front_and_taken_off_or_named() -> None:
    module = nn.Linear(4, 3)
    graphs = ap.trace(module, (torch.ones(2, 4),))
    assert graphs.backward is not None
    both = ap.multiplex(graphs.backward, graphs.forward, lanes=("B", "F"))
    values = {**graphs.bind(module), **graphs.bind_inputs(torch.ones(2, 4))}
    with pytest.raises(ap.GraphError, match=r"this graph has lanes: ap.into_lane\(values, 'B'\)"):
        both(values)
    backward = {**values, **graphs.forward(values), "tangent.output": torch.ones(2, 3)}
    result = both({**ap.into_lane(backward, "B"), **ap.into_lane(values, "F")})
    assert set(graphs.parameter_gradients(ap.out_of_lane(result, "B"))) == {"weight", "bias"}
    with pytest.raises(ap.GraphError, match="no value of lane 'X'; there are values of B, F"):
        ap.out_of_lane(result, "X")
    with pytest.raises(ap.GraphError, match=r"no value for param_grad.\w+: .*ap.out_of_lane"):
        graphs.parameter_gradients(result)


def test_two_threads_trace_one_after_the_other() -> None:
    before = torch.set_rng_state
    with ThreadPoolExecutor(2) as pool:
        traced = list(pool.map(lambda n: ap.trace(nn.Linear(n, 3), (torch.ones(2, n),)), [4, 5]))
    assert [g.forward.port("input.input").shape for g in traced] == [(2, 4), (2, 5)]
    assert torch.set_rng_state is before
