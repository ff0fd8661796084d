import struct
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'annopipe[plots]'")

import matplotlib as mpl
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.text import Text

from annopipe.errors import AnnopipeError
from annopipe.simulation.picture.pipeline import draw
from annopipe.simulation.ranks import png
from tests.simulation.ranks.schedules import (
    Drawn,
    empty,
    nano_batched,
    one_f_one_b,
    simulate,
    v_shape,
    with_operations,
    zero_bubble,
)


@pytest.fixture
def timeline() -> Drawn:
    return simulate("1f1b", one_f_one_b(4, 8))


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text) if isinstance(text, Text) and text.get_text()]


def boxes(figure: Figure, axes: int = 0) -> int:
    """How many boxes are filled with a colour of their own."""
    found = figure.axes[axes].findobj(PolyCollection)
    filled = [c for c in found if isinstance(c, PolyCollection) and len(c.get_facecolor()) and c.get_zorder() == 1]
    return sum(len(collection.get_paths()) for collection in filled)


def size(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def test_file_is_a_png_and_the_same_each_time_whatever_the_settings(tmp_path, timeline):
    before = dict(mpl.rcParams)
    png.write(tmp_path / "new" / "one.png", {"1f1b": timeline}, "T")
    assert dict(mpl.rcParams) == before
    with mpl.rc_context({"font.size": 20, "axes.facecolor": "red", "hatch.linewidth": 5, "savefig.bbox": "tight"}):
        png.write(tmp_path / "two.png", {"1f1b": timeline}, "T")
    assert (tmp_path / "new" / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
    assert size(tmp_path / "two.png")[0] == 1560


def test_every_action_is_a_box_with_its_microbatch(timeline):
    figure = draw({"1f1b": timeline}, "")
    assert boxes(figure) == sum(map(len, timeline.spans))
    numbers = [text.get_text() for text in figure.axes[0].texts]
    assert sorted(numbers) == sorted(str(span.microbatch) for row in timeline.spans for span in row)


def test_combinations_show_the_number_of_each_part():
    timeline = simulate("v", v_shape(2, 3))
    figure = draw({"v": timeline}, "")
    assert boxes(figure) == sum(max(1, len(span.parts)) for row in timeline.spans for span in row)
    assert len(figure.axes[0].texts) == boxes(figure)


def test_nano_batches_are_boxes_of_their_own_with_one_number():
    figure = draw({"": nano_batched()}, "")
    assert boxes(figure) == (2 + 1 + 2 + 1) + (2 + (1 + 2) + 1)
    assert [text.get_text() for text in figure.axes[0].texts] == ["0", "1", "0", "1", "0", "1", "0", "1"]
    assert "cut: nano-batches" in texts(figure)


def test_operations_are_hatched_and_named_in_the_legend():
    figure = draw({"": with_operations()}, "")
    hatches = [c.get_hatch() for c in figure.axes[0].findobj(PolyCollection) if isinstance(c, PolyCollection)]
    assert any(hatches)
    assert {"offload", "unshard", "forward", "idle"} <= set(texts(figure))


def test_schedules_share_the_time_axis_and_have_their_numbers(timeline):
    figure = draw({"one": timeline, "two": simulate("zb", zero_bubble(4, 8))}, "title")
    assert {axes.get_xlim() for axes in figure.axes} == {(0.0, 33.0)}
    shown = texts(figure)
    assert {"title", "one", "two"} <= set(shown)
    assert any("makespan 27 s    bubble 11.1%    peak memory 4" in text for text in shown)
    assert {"27.3%", "11.1%"} <= set(shown)


def test_memory_of_each_rank_is_a_curve_that_reaches_its_peak(timeline):
    curves = draw({"": timeline}, "").axes[1].findobj(LineCollection)[0]
    assert isinstance(curves, LineCollection)
    assert [max(y for _, y in segment) for segment in curves.get_segments()] == list(timeline.peaks)


def test_messages_are_drawn_when_they_take_time_and_are_few():
    def shown(latency: float, microbatches: int) -> bool:
        return "message" in texts(draw({"": simulate("x", one_f_one_b(2, microbatches), latency=latency)}, ""))

    assert shown(0.5, 4)
    assert not shown(0.0, 4)
    assert not shown(0.5, 400)


def test_actions_too_narrow_for_boxes_become_an_image_of_mixed_colours():
    figure = draw({"": simulate("x", one_f_one_b(4, 1000))}, "")
    (image,) = figure.axes[0].images
    array = image.get_array()
    assert array is not None
    assert array.shape[0] == 4
    assert boxes(figure) == 0
    assert any("mean colour of what runs" in text for text in texts(figure))
    assert figure.get_size_inches()[0] == 16.0


def test_many_ranks_have_some_labels_only():
    shown = texts(draw({"": simulate("x", one_f_one_b(40, 40))}, ""))
    assert "rank 0" in shown
    assert "rank 1" not in shown


@pytest.mark.parametrize("ranks", [1, 40])
def test_a_schedule_without_time_or_actions_is_drawn(ranks):
    nothing = empty()
    wide = replace(nothing, ranks=ranks, spans=((),) * ranks, bubbles=(0.0,) * ranks, peaks=(0.0,) * ranks, memory=())
    assert {"title", "x"} <= set(texts(draw({"x": wide}, "title")))


def test_names_are_shown_as_they_are():
    assert "$x_{$ <b>" in texts(draw({"$x_{$\n<b>": simulate("x", one_f_one_b(1, 1))}, "t"))


def test_a_path_that_cannot_be_written_is_refused(tmp_path, timeline):
    with pytest.raises(AnnopipeError, match="cannot write .*; choose a file in a folder that can be written to"):
        png.write(tmp_path, {"": timeline})
