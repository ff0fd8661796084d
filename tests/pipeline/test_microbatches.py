import pytest
import torch
from torch import nn

import annopipe as ap
from annopipe.pipeline.calls.microbatches import positional_names, split_batch


def test_the_longest_path_decides_which_dimension_is_cut():
    value = {"state": {"x": torch.arange(8).view(4, 2), "mask": torch.arange(8).view(2, 4), "sizes": torch.arange(5)}}
    parts = split_batch(value, 2, {"state": 0, "state.mask": 1, "state.sizes": None})
    assert [parts[1]["state"][name].tolist() for name in value["state"]] == [
        [[4, 5], [6, 7]],
        [[2, 3], [6, 7]],
        [0, 1, 2, 3, 4],
    ]


@pytest.mark.parametrize(
    ("value", "match"),
    [
        ({"x": torch.ones(4), "scale": torch.tensor(1.0)}, r"scale has shape \(\), and its dimension 0 cannot be cut"),
        ({"x": torch.ones(4), "scale": torch.ones(1)}, r"scale has shape \(1,\)"),
        ({"x": torch.ones(4), "offsets": torch.ones(6)}, "offsets is 6 long in dimension 0, and x has a batch of 4"),
        ({"x": torch.ones(5)}, r"x has shape \(5,\)"),
    ],
)
def test_what_cannot_be_cut_is_refused_with_what_to_do(value, match):
    with pytest.raises(ap.PipelineError, match=match) as caught:
        split_batch(value, 2, {})
    assert "batch_dims={" in str(caught.value)
    assert "step_microbatches" in str(caught.value)


def test_a_target_may_have_several_rows_for_each_of_the_batch():
    lengths: dict[str, int] = {}
    split_batch({"x": torch.ones(4, 3)}, 2, {}, lengths)
    assert split_batch({"target": torch.ones(12)}, 2, {}, lengths)[0]["target"].shape == (6,)


def test_positional_arguments_are_called_as_forward_calls_them():
    class Rest(nn.Module):
        def forward(self, x, *rest, scale=1):
            return x

    assert positional_names(Rest(), 3) == ["x", "rest.0", "rest.1"]
