"""``annopipe schedule compare``: one model's costs for all, what is left out, and the table in every width."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import annopipe as ap
from tests.cli.running import Result

Run = Callable[..., Result]

TABLE = """\
4 ranks and 8 microbatches
costs: F=1, I=1, W=1, send=0, latency=0, activation=1; per microbatch on 1/p of
the model: with v stages a rank, a stage has 1/v of the times and of the memory;
a message is one stage's output and stays whole

                                to                    peak
schedule          makespan    best  bubble  window  memory  messages
1f1b                  33 s  +29.4%   27.3%    33 s       4        48
interleaved-1f1b    28.5 s  +11.8%   15.8%  28.5 s     5.5       112
zbv                 25.5 s       -    5.9%    24 s       4        96
"""
LEFT_OUT = """
left out:
  dualpipe: ranks=3: two copies in opposite directions need an even number of
    ranks
"""


def compared(schedule: Run, *arguments: str) -> dict[str, dict[str, float]]:
    found = json.loads(schedule("compare", *arguments, "--json").stdout)
    return {row["name"]: row for row in found["schedules"]}


def test_compare_prints_a_row_per_schedule(schedule: Run) -> None:
    assert schedule("compare", "1f1b", "interleaved-1f1b", "zbv").stdout == TABLE


def test_compare_without_names_takes_all_that_train_a_chain(schedule: Run) -> None:
    assert set(ap.schedules()) - set(compared(schedule)) == {"forward-only", "distmm-pipe"}


def test_all_schedules_do_the_same_work_at_the_costs_of_one_model(schedule: Run) -> None:
    for name, row in compared(schedule, "--costs", "F=1,I=2,W=0.5").items():
        assert row["makespan"] - row["idle"] == pytest.approx(8 * 3.5), name


def test_costs_per_stage_are_not_divided(schedule: Run) -> None:
    row = compared(schedule, "zbv", "--per-stage")["zbv"]
    timeline = ap.simulate(ap.schedule("zbv", 4, 8))
    assert (row["makespan"], row["peak_memory"]) == (timeline.makespan, timeline.peak_memory)
    assert (
        "per microbatch and stage,\nhowever many stages a rank has\n"
        in schedule("compare", "zbv", "--per-stage").stdout
    )


def test_compare_sorts_by_a_number(schedule: Run) -> None:
    names = ("naive", "1f1b", "zbv")
    assert list(compared(schedule, *names)) == ["naive", "1f1b", "zbv"]
    assert list(compared(schedule, *names, "--sort", "makespan")) == ["zbv", "1f1b", "naive"]
    assert list(compared(schedule, *names, "--sort", "memory")) == ["naive", "1f1b", "zbv"]
    assert list(compared(schedule, *names, "--sort", "messages")) == ["naive", "1f1b", "zbv"]


def test_what_the_counts_have_no_meaning_for_is_listed_with_the_reason(schedule: Run) -> None:
    result = schedule("compare", "gpipe", "dualpipe", "--ranks", "3")
    assert result.returncode == 0
    assert result.stdout.endswith(LEFT_OUT)
    found = json.loads(schedule("compare", "gpipe", "dualpipe", "--ranks", "3", "--json").stdout)
    assert [entry["name"] for entry in found["left_out"]] == ["dualpipe"]
    assert found["costs"]["F"] == 1.0
    assert found["per_stage"] is False


def test_files_give_their_counts_to_names_and_are_checked(schedule: Run, tmp_path: Path) -> None:
    schedule("export", "zb-h1", "--ranks", "3", "--microbatches", "5", "--csv", "mine.csv")
    (tmp_path / "half.csv").write_text("0F0,0F1\n1F0,1F1,1B0\n", encoding="utf-8")
    rows = compared(schedule, "mine.csv", "zb-h1")
    assert {key: rows["mine.csv"][key] for key in ("ranks", "microbatches", "makespan")} == {
        key: rows["zb-h1"][key] for key in ("ranks", "microbatches", "makespan")
    }
    assert (
        "  half.csv: rank 0: 0B0 is missing; add 0B0 (or I and W of it)\n"
        in schedule("compare", "mine.csv", "half.csv").stdout
    )


def test_a_files_placement_can_be_told(schedule: Run) -> None:
    schedule("export", "dualpipe", "--csv", "mine.csv")
    rows = compared(schedule, "mine.csv", "dualpipe", "wave", "--placement", "bidirectional")
    assert rows["mine.csv"]["makespan"] == rows["dualpipe"]["makespan"]
    assert rows["mine.csv"]["peak_memory"] == rows["dualpipe"]["peak_memory"]


def test_unequal_work_is_pointed_out(schedule: Run) -> None:
    schedule("export", "gpipe", "--microbatches", "5", "--csv", "mine.csv")
    text = schedule("compare", "mine.csv", "gpipe", "--microbatches", "6").stdout
    assert text.startswith("4 ranks and 5 microbatches, 4 ranks and 6 microbatches\n")
    assert "Not one amount of work: the numbers of microbatches differ.\n" in text


def test_options_go_to_the_schedules_that_take_them(schedule: Run) -> None:
    rows = compared(schedule, "1f1b", "wave", "Schedule1F1B", "--chunks", "2")
    assert list(rows) == ["1f1b", "wave"]
    assert rows["wave"]["message_count"] == 2 * 8 * (2 * 4 - 2)


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_table_fits_the_width(schedule: Run, columns: int) -> None:
    result = schedule("compare", "--costs", "send=0.123,latency=0.05,activation=1e9", columns=columns)
    lines = result.stdout.splitlines()
    if columns > 60:
        assert max(map(len, lines)) <= columns
    text = result.stdout
    assert "comm." in text
    assert ("  best" in text) == (columns > 80)


def test_compare_draws_all_on_one_picture_and_one_page(schedule: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    result = schedule("compare", "gpipe", "1f1b", "--png", "a.png", "--html", "a.html")
    assert result.stderr == "wrote a.png\nwrote a.html\n"
    assert (tmp_path / "a.png").read_bytes()[1:4] == b"PNG"
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert "2 schedules: 4 ranks and 8 microbatches" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gip", "1f1b"], "there is no schedule 'gip'; did you mean gpipe?"),
        (["gone.csv"], "there is no file gone.csv"),
        (["dualpipe", "--ranks", "3"], "nothing is left to compare: dualpipe: ranks=3: two copies"),
        (["1f1b", "--chunks", "3"], "--chunks: none of these schedules has that choice"),
        (["1f1b", "--placement", "v"], "--placement is for files: name one"),
        (["1f1b", "--costs", "F=[1,2]"], "1f1b: F has 2 entries and there are 4 ranks; give one for each"),
        (["1f1b", "--sort", "beauty"], "'beauty' is not one of"),
    ],
)
def test_compare_says_what_is_wrong(schedule: Run, arguments: list[str], message: str) -> None:
    result = schedule("compare", *arguments)
    assert result.returncode == 2
    assert message in result.stderr


def test_schedules_above_the_memory_are_left_out_with_the_reason(schedule: Run) -> None:
    found = json.loads(schedule("compare", "1f1b", "gpipe", "zbv", "--memory", "4", "--json").stdout)
    assert [row["name"] for row in found["schedules"]] == ["1f1b", "zbv"]
    assert found["left_out"] == [{"name": "gpipe", "reason": "its peak memory is 8, and the limit 4"}]


def test_compare_makes_the_orders_for_the_costs_when_told(schedule: Run) -> None:
    costs = ("wave", "--costs", "latency=0.05")
    usual, made = (compared(schedule, *costs, *more)["wave"]["makespan"] for more in ((), ("--made-for-costs",)))
    assert made > usual


def test_what_is_much_longer_than_the_others_is_not_drawn_beside_them(schedule: Run, tmp_path: Path) -> None:
    result = schedule("compare", "naive", "zbv", "--ranks", "8", "--microbatches", "16", "--html", "a.html")
    assert result.stderr == "too long to draw beside the others: naive\nwrote a.html\n"
    assert "naive" in result.stdout
    assert "without naive, of more than 4 times the shortest" in (tmp_path / "a.html").read_text(encoding="utf-8")
