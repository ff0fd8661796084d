"""The two towers: cut anywhere they are the whole, and each sees what it may."""

import dataclasses

import pytest
import torch

import annopipe as ap
from annopipe.models import Contrast, ImageTower, TextTower, TwoTowerConfig
from annopipe.models.two_tower import TowerSizes

TINY = TwoTowerConfig.tiny()


def part_of(whole: ImageTower, layers: list[int], *, embed: bool, head: bool) -> ImageTower:
    part = ImageTower(TINY, layers, embed=embed, head=head)
    part.load_state_dict({name: whole.state_dict()[name] for name in part.state_dict()})
    return part


def test_parts_of_a_tower_are_the_tower() -> None:
    whole, pixels = ImageTower(TINY), torch.randn(2, 3, 8, 8)
    first, last = part_of(whole, [0, 1], embed=True, head=False), part_of(whole, [2], embed=False, head=True)
    assert torch.equal(last(first(pixels)), whole(pixels))


def test_a_text_sees_backwards_only_and_an_image_everywhere() -> None:
    text = TextTower(TINY, head=False)
    tokens = torch.randint(0, 64, (1, 6))
    changed = tokens.clone()
    changed[0, -1] = (tokens[0, -1] + 1) % 64
    assert torch.equal(text(tokens)[:, :-1], text(changed)[:, :-1])
    image = ImageTower(TINY, head=False)
    pixels = torch.randn(1, 3, 8, 8)
    other = pixels.clone()
    other[..., -1] += 1.0
    assert not torch.equal(image(pixels)[:, 0], image(other)[:, 0])


def test_the_loss_is_least_when_pairs_belong_together() -> None:
    vectors, contrast = torch.eye(4, 16), Contrast(TINY)
    assert contrast(vectors, vectors) < contrast(vectors, vectors.roll(1, 0))


def test_regions_name_the_tower() -> None:
    graphs = ap.trace(ImageTower(TINY), (torch.zeros(1, 3, 8, 8),))
    regions = {row.region for row in ap.region_table(graphs.forward)}
    assert {"image/embed", "image/block2/attention", "image/block0/mlp", "image/head"} <= regions


def test_published_sizes_have_their_parameters() -> None:
    for config, billions in ((TwoTowerConfig.clip_l14(), 0.428), (TwoTowerConfig.clip_bigg14(), 2.54)):
        towers = [kind(config, device="meta") for kind in (ImageTower, TextTower)]
        count = sum(p.numel() for tower in towers for p in tower.parameters())
        assert count / 1e9 == pytest.approx(billions, rel=0.01)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"patch": 3}, "8 pixels a side cannot be cut into patches of 3"),
        ({"joint": 0}, "joint is 0; it must be an integer of at least 1"),
    ],
)
def test_sizes_that_cannot_be_are_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(ap.GraphError, match=message):
        dataclasses.replace(TINY, **change)  # type: ignore[arg-type]


def test_heads_and_layers_that_cannot_be_are_refused() -> None:
    with pytest.raises(ap.GraphError, match="a width of 10 cannot be shared equally by 4 heads"):
        TowerSizes(hidden=10, layers=1, heads=4, intermediate=8)
    with pytest.raises(ap.GraphError, match=r"ImageTower: layer 3 is not one of 3"):
        ImageTower(TINY, [3])
