"""``annopipe schedule list`` and ``show``: what they print, and the files that they write."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import annopipe as ap
from tests.cli.running import Result

Run = Callable[..., Result]

DRAWN = """\
1f1b, 2 ranks
makespan 9 s   bubble 33.3%   peak memory 2   exposed communication 0 s

rank bubble  peak
   0  33.3%     2  0 1 ....B0- ..B1-
   1  33.3%     1  ..0 B0- 1 B1- ....
                   |0 s           9 s|

1 forward of microbatch 1   B1 backward   . idle
"""


@pytest.mark.parametrize("columns", [72, 80, 120])
def test_list_names_every_schedule_within_the_width(schedule: Run, columns: int) -> None:
    lines = schedule("list", columns=columns).stdout.splitlines()
    assert max(map(len, lines)) <= columns
    named = [line.split()[0] for line in lines if line and not line.startswith(" ")]
    assert [name for name in named if name in ap.schedules()] == list(ap.schedules())
    text = "\n".join(lines)
    assert "  --chunks 4" in text
    assert "(p-1)(F+I-W)" in text


def test_list_as_json_has_all_that_is_known(schedule: Run) -> None:
    found = {entry["name"]: entry for entry in json.loads(schedule("list", "--json").stdout)}
    assert tuple(found) == ap.schedules()
    assert found["wave"]["options"] == {"chunks": 4}
    assert found["zbv"]["peak"] == "p"
    assert "ScheduleZBVZeroBubble" in found["zbv"]["aliases"]


def test_show_draws_in_the_width_of_the_terminal(schedule: Run) -> None:
    assert schedule("show", "1f1b", "--ranks", "2", "--microbatches", "2").stdout == DRAWN
    for columns in (60, 80, 120):
        lines = schedule("show", "dualpipev", "--costs", "FB=2.5,send=0.1", columns=columns).stdout.splitlines()
        assert max(map(len, lines)) <= columns


def test_show_simulates_at_the_costs_that_are_given(schedule: Run, tmp_path: Path) -> None:
    (tmp_path / "costs.toml").write_text("F = 2.0\nI = 1\nsend = [0.5, 0.0]\n[exposed]\nF = 0.25\n", encoding="utf-8")
    (tmp_path / "costs.json").write_text('{"F": 2.0, "I": 1, "send": [0.5, 0.0], "exposed": {"F": 0.25}}')
    counts = ("--ranks", "2", "--microbatches", "2", "--json")
    expected = ap.simulate(
        ap.schedule("gpipe", 2, 2), ap.costs.table(F=2.0, I=1.0, send=[0.5, 0.0], exposed={"F": 0.25})
    )
    for costs in ("costs.toml", "costs.json", "F=2.0, I=1, send=[0.5, 0.0], exposed={F=0.25}"):
        numbers = json.loads(schedule("show", "gpipe", *counts, "--costs", costs).stdout)
        assert numbers["makespan"] == expected.makespan
        assert numbers["exposed_comm"] == expected.exposed_comm
        assert numbers["critical_path"] == [entry.text for entry in expected.critical_path]


def test_show_writes_pictures_and_says_where(schedule: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    result = schedule("show", "zbv", "--png", "new/a.png", "--html", "a.html", "--perfetto", "a.json")
    assert result.stdout.startswith("zbv, 4 ranks")
    assert result.stderr == "wrote new/a.png\nwrote a.html\nwrote a.json\n"
    assert (tmp_path / "new" / "a.png").read_bytes()[1:4] == b"PNG"
    assert "zbv: 4 ranks, 8 microbatches" in (tmp_path / "a.html").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))["traceEvents"]


def test_show_prints_a_specification_that_fits_or_one_field_a_line(schedule: Run) -> None:
    short = schedule("show", "1f1b", "--ranks", "2", "--spec", columns=120).stdout
    assert short == f"{ap.schedule_spec('1f1b', 2, 8)!r}\n"
    long = schedule("show", "dualpipev", "--spec").stdout.splitlines()
    assert "        'p - r - 1 : I1 W1 F1'," in long
    assert "    layout_for='2*p'," in long
    assert "    costs=ActionCosts(B=1.0)," in schedule("show", "chimera", "--spec").stdout.splitlines()


def test_show_prints_every_action_in_bands(schedule: Run) -> None:
    shown = schedule("show", "dualpipev", "--grid").stdout
    assert max(map(len, shown.splitlines())) <= 80
    rows = [line.split()[2:] for line in shown.splitlines() if line.startswith("rank 2")]
    assert [cell for row in rows for cell in row] == [str(action) for action in ap.schedule("dualpipev", 4, 8).ranks[2]]
    assert shown.count("\n\n") == len(rows) - 1


def test_show_reads_a_file_and_warns_of_one_that_is_broken(schedule: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("0F0,0B0\n1F0,1B0\n", encoding="utf-8")
    (tmp_path / "half.csv").write_text("0F0,0F1\n1F0,1F1,1B0\n", encoding="utf-8")
    assert schedule("show", "mine.csv").stdout.startswith("mine.csv, 2 ranks\nmakespan 6 s")
    assert schedule("show", "mine.csv").stderr == ""
    half = schedule("show", "half.csv", "--grid")
    assert half.returncode == 0
    assert half.stderr == (
        "annopipe: half.csv does not pass annopipe schedule check: rank 0: 0B0 is missing; add 0B0 (or I and W of it)\n"
    )


def test_a_file_without_the_suffix_is_found_and_a_name_wins_over_a_file(schedule: Run, tmp_path: Path) -> None:
    for name in ("order.txt", "1f1b"):
        (tmp_path / name).write_text("0F0,0B0\n", encoding="utf-8")
    assert schedule("show", "order.txt").stdout.startswith("order.txt, 1 rank\n")
    assert schedule("show", "1f1b").stdout.startswith("1f1b, 4 ranks")
    assert schedule("show", "./1f1b").stdout.startswith("./1f1b, 1 rank\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["1fb1"], "there is no schedule '1fb1'; did you mean 1f1b? the library has naive, gpipe"),
        (["schedulegpip"], "did you mean gpipe or "),
        (["xyz"], "there is no schedule 'xyz'; the library has naive"),
        (["gone.csv"], "there is no file gone.csv"),
        (["."], "there is no schedule '.'"),
        (["dualpipe", "--ranks", "3"], "two copies in opposite directions need an even number of ranks"),
        (["1f1b", "--chunks", "2"], "1f1b has no option 'chunks'; its options are: none"),
        (["1f1b", "--ranks", "0"], "0 is not in the range x>=1"),
        (["distmm-pipe", "--towers", "2;1"], "2;1: write the ranks of each tower, as 2,1"),
        (["distmm-pipe", "--towers", "2,0"], "2,0: write the ranks of each tower, as 2,1"),
        (["distmm-pipe", "--towers", "2,2"], "give the ranks of two towers or more"),
        (["zbv", "--placement", "v"], "--placement is for files: zbv has its own"),
        (["1f1b", "--spec", "--grid"], "--spec, --grid and --json each print something else"),
        (["1f1b", "--spec", "--png", "a.png"], "give it without costs or pictures"),
        (["mine.csv", "--spec"], "mine.csv is a file, which has actions and no specification: name a schedule"),
        (["mine.csv", "--ranks", "2"], "--ranks: the rows of mine.csv say that, unless --placement is given"),
        (["mine.csv", "--placement", "looped"], "go together: say how many stages a rank has"),
        (["mine.csv", "--placement", "v", "--chunks", "2"], "go together: say how many stages a rank has"),
        (["mine.csv", "--placement", "towers"], "--placement towers and --towers go together"),
        (["mine.csv", "--placement", "linear", "--ranks", "3"], "mine.csv has 2 rows, and the placement 3 ranks"),
        (["cell.csv"], "cell.csv, row 2 (rank 1), column 2: "),
        (["stuck.csv"], "1B0"),
        (["1f1b", "--html", "mine.csv/a.html"], "cannot write mine.csv/a.html: "),
    ],
)
def test_show_says_what_is_wrong(schedule: Run, arguments: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("0F0,0B0\n1F0,1B0\n", encoding="utf-8")
    (tmp_path / "cell.csv").write_text("0F0,0B0\n1F0,1B0x\n", encoding="utf-8")
    (tmp_path / "stuck.csv").write_text("0F0,0B0\n1B0,1F0\n", encoding="utf-8")
    result = schedule("show", *arguments)
    assert result.returncode == 2
    assert message in result.stderr


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        ("F", "'F': write NAME=NUMBER with commas between"),
        ("", "'': write NAME=NUMBER"),
        ("F=.5", "a digit before and after a point"),
        ("F=1,F=2", "each name once"),
        ("F=1} # {", "write NAME=NUMBER"),
        ("F=1}\nI={a=2", "write NAME=NUMBER"),
        ("F=-1", "F is -1: give a number that is finite and not negative"),
        ("F=true", "F is True: give a number"),
        ("G=1", "table() does not know 'G'; it takes F, I, W"),
        ("exposed=1", "exposed is 1: give a table, as exposed={NAME=0.1}"),
        ("operations=[1]", "operations is [1]: give a table, as operations={NAME=0.1}"),
        ("F=[1,2]", "F has 2 entries and there are 4 ranks; give one for each"),
        ("gone.toml", "gone.toml: No such file or directory"),
        ("bad.toml", "bad.toml: "),
        ("bad.json", "bad.json: Expecting value: line 1 column 7"),
        ("list.json", "list.json: write one object"),
        ("latin.toml", "latin.toml: 'utf-8' codec can't decode"),
    ],
)
def test_costs_that_are_none_are_refused(schedule: Run, costs: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("F = ", encoding="utf-8")
    (tmp_path / "bad.json").write_text('{"F": }', encoding="utf-8")
    (tmp_path / "list.json").write_text("[1]", encoding="utf-8")
    (tmp_path / "latin.toml").write_bytes(b"F = '\xe4'")
    result = schedule("show", "1f1b", "--costs", costs)
    assert result.returncode == 2
    assert message in result.stderr


def test_work_is_announced_on_a_terminal_only(schedule: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("0F0,0B0\n", encoding="utf-8")
    assert schedule("show", "mine.csv").stderr == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert "simulating mine.csv ...\r\x1b[K" in schedule("show", "mine.csv").stderr


def test_costs_are_those_of_a_ranks_share_unless_they_are_per_stage(schedule: Run) -> None:
    share = json.loads(schedule("show", "zbv", "--json").stdout)
    assert (share["makespan"], share["peak_memory"]) == (25.5, 4)
    stage = json.loads(schedule("show", "zbv", "--json", "--per-stage").stdout)
    timeline = ap.simulate(ap.schedule("zbv", 4, 8))
    assert (stage["makespan"], stage["peak_memory"]) == (timeline.makespan, timeline.peak_memory)


def test_an_order_is_made_for_the_costs_only_when_told(schedule: Run) -> None:
    asked = ("show", "wave", "--costs", "latency=0.05", "--json")
    usual, made = (json.loads(schedule(*asked, *more).stdout)["makespan"] for more in ((), ("--made-for-costs",)))
    assert (usual, made) == (pytest.approx(29.9), pytest.approx(36.6))


def test_operations_that_a_file_only_names_are_told(schedule: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("0F0,0DROP0,0TAKE0,0B0\n", encoding="utf-8")
    told = schedule("show", "mine.csv").stderr
    assert told.startswith("annopipe: a file only names operations: DROP, TAKE of mine.csv take no time, unless")
    priced = schedule("show", "mine.csv", "--costs", "operations={DROP=1,TAKE=2}")
    assert (priced.stderr, "makespan 6 s" in priced.stdout) == ("", True)


def test_a_placement_that_is_guessed_is_told(schedule: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("0F0,0B0\n1F0,1B0\n", encoding="utf-8")
    guessed = schedule("show", "mine.csv").stdout
    assert guessed.endswith("\nread as a chain of 2 stages; --placement says else\n")
    assert "read as" not in schedule("show", "mine.csv", "--placement", "linear").stdout
    checked = schedule("check", "mine.csv").stdout
    assert (
        checked == "mine.csv passes: 2 ranks, read as a chain of 2 stages, 1 microbatches, 4 actions without messages\n"
    )
