"""Workloads: what is refused, and what a file says."""

import math
import tempfile
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annopipe.errors import CostError
from annopipe.tuning.layers import Layer, Recompute
from annopipe.tuning.workload import Workload

LAYER = Layer(1.0, 1.0, 1.0, activation=1.0)
WORK = Workload((LAYER,) * 8, ranks=4, microbatches=8, name="small")
SMALL = """
[[workload]]
name = "small"
ranks = 4
microbatches = 8
layers = [{ repeat = 8, F = 1.0, I = 1.0, W = 1.0, activation = 1.0 }]
"""
TOWERS = """
[[workload]]
name = "towers"
ranks = 2
microbatches = 3
towers = [[{ repeat = 2, F = 1.0, I = 1.0, W = 1.0 }], [{ F = 2.0, I = 2.0, W = 2.0 }]]
layers = [{ F = 1, I = 1, W = 1, recompute = { saves = 0.5, costs = 0.25 } }]
"""
WRONG = (
    ({"ranks": 0}, "ranks=0: give a whole number"),
    ({"microbatches": 2.0}, "microbatches=2.0: give a whole number"),
    ({"layers": ()}, "give every chain one layer or more"),
    ({"layers": (LAYER,) * 3}, "3 layers are fewer than 4 ranks"),
    ({"layers": (Layer(0.0, 0.0, 0.0),) * 4}, "no layer takes any time"),
    ({"layers": (LAYER, replace(LAYER, F=math.nan), *(LAYER,) * 3)}, "F of layer 1 is nan"),
    ({"layers": (replace(LAYER, recompute=Recompute(-1.0, 0.0)),) * 4}, r"recompute.saves of layer 0 is -1.0"),
    ({"towers": ((LAYER,),)}, "a single tower is a chain"),
    ({"message": -1.0}, "message=-1.0: give a number that is finite and not negative"),
    ({"layers": 5}, "layers is 5: give a list"),
    ({"towers": (3, 4)}, "a tower is 3: give a list"),
    ({"speed": 2.0}, "speed is 2.0: give a list"),
    ({"name": 5}, "its name is 5: give a text"),
    ({"batch_wide": "no"}, "batch_wide='no': give True or False"),
    ({"layers": (replace(LAYER, W=10**400),) * 4}, "W of layer 0 is 1000.*: give a number that is finite"),
    ({"speed": (1.0,)}, "speed has 1 entries and there are 4 ranks"),
    ({"speed": (1.0, 1.0, 1.0, 0.0)}, "give numbers above 0"),
    ({"memory": 1.5}, "memory=1.5 is too little for any schedule: with one microbatch in flight .* holds 2 or more"),
)
WRONG_FILES = (
    ("", "has no workload"),
    ("ranks = 4", "has no field 'ranks'; it has workload"),
    (SMALL.replace("ranks", "rank"), "has no field 'rank'; it has layers, ranks"),
    (SMALL.replace("ranks = 4\n", ""), "workload 'small' has no ranks: give it"),
    (SMALL.replace("W = 1.0, ", ""), "a layer has no W: give its time"),
    (SMALL.replace("repeat = 8", "repeat = 0"), "repeat=0: give a whole number"),
    (SMALL.replace("repeat = 8", "time = 8"), "layers has no field 'time'"),
    (SMALL.replace("[{", "{").replace("}]", "}"), "layers is {.*}: give a list"),
    (SMALL + SMALL, "give each workload a name of its own"),
    (TOWERS.replace(", costs = 0.25", ""), "recompute: give both saves and costs"),
    (SMALL.replace("F = 1.0", 'F = "1"'), "F of layer 0 is '1': give a number"),
    ("[[workload", "is not TOML"),
    (f"deep = {'[' * 5_000}{']' * 5_000}", "is not TOML"),
    (SMALL.replace("repeat = 8", f"repeat = {10**12}"), "give a whole number, 1 to 100000"),
)


@pytest.mark.parametrize(("changes", "message"), WRONG, ids=[message for _, message in WRONG])
def test_a_workload_that_is_none_is_refused_with_the_remedy(changes: dict[str, object], message: str) -> None:
    with pytest.raises(CostError, match=message):
        replace(WORK, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(("text", "message"), WRONG_FILES, ids=[message for _, message in WRONG_FILES])
def test_a_file_that_has_none_is_refused_and_named(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "work.toml"
    path.write_text(text)
    with pytest.raises(CostError, match=message):
        Workload.from_toml(path)


def test_a_file_gives_the_workload_that_is_written_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "work.toml"
    path.write_text(SMALL)
    assert Workload.from_toml(path) == WORK


def test_towers_have_a_loss_over_the_whole_batch_unless_said_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "work.toml"
    path.write_text(SMALL + TOWERS)
    work = Workload.from_toml(path, "towers")
    assert work.batch_wide
    assert [len(chain) for chain in work.chains] == [2, 1, 1]
    assert work.layers[0].recomputed().I == 1.25
    path.write_text(TOWERS.replace("ranks", "batch_wide = false\nranks"))
    assert not Workload.from_toml(path).batch_wide


def test_of_several_workloads_one_has_to_be_named(tmp_path: Path) -> None:
    path = tmp_path / "work.toml"
    path.write_text(SMALL + TOWERS)
    with pytest.raises(CostError, match="has 2 workloads: say which, one of small, towers"):
        Workload.from_toml(path)
    with pytest.raises(CostError, match="has no workload 'other'; it has small, towers"):
        Workload.from_toml(path, "other")
    assert [work.name for work in Workload.all_from_toml(path)] == ["small", "towers"]


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(CostError, match="nowhere.toml: No such file"):
        Workload.from_toml("nowhere.toml")


def test_what_is_nothing_by_number_is_written_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "work.toml"
    work = Workload((Layer(1.0, 1.0, 1.0),) * 2, ranks=2, microbatches=2, memory=0.0, speed=[1.0, 2.0])  # type: ignore[arg-type]
    path.write_text(work.to_toml())
    assert Workload.from_toml(path) == work
    path.write_text(replace(work, layers=(replace(work.layers[0], F=Fraction(1, 2)),) * 2).to_toml())
    assert Workload.from_toml(path).layers[1].F == 0.5


AMOUNTS = st.floats(0.125, 8.0)
LAYERS = st.builds(
    Layer, AMOUNTS, AMOUNTS, AMOUNTS, AMOUNTS, AMOUNTS, recompute=st.none() | st.builds(Recompute, AMOUNTS, AMOUNTS)
)
CHAINS = st.lists(LAYERS, min_size=2, max_size=3).map(lambda layers: (*layers, layers[-1]))


@settings(deadline=None)
@given(CHAINS, st.just(()) | st.tuples(CHAINS, CHAINS), st.booleans(), st.sampled_from([(), (1.0, 0.5)]), AMOUNTS)
def test_a_workload_is_what_its_text_says(
    layers: tuple[Layer, ...], towers: tuple[tuple[Layer, ...], ...], whole: bool, speed: tuple[float, ...], time: float
) -> None:
    work = Workload(layers, 2, 4, towers, whole, message=time, latency=time, memory=1e3, speed=speed, name='of "two"')
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "work.toml")
        path.write_text(work.to_toml() + "\n" + replace(work, name="other", memory=None).to_toml())
        assert Workload.from_toml(path, 'of "two"') == work
        assert [each.name for each in Workload.all_from_toml(path)] == ['of "two"', "other"]
