import pytest

from annopipe.errors import CostError
from annopipe.scheduling.action_costs import table
from annopipe.scheduling.actions import Action
from annopipe.scheduling.lanes import check_lanes, lanes_text, of_lanes


@pytest.mark.parametrize(
    ("action", "name", "first"),
    [
        ("2F0", "", "2F0"),
        ("2F0/2", "F/2", "2F0/2"),
        ("(2F5;1B0)OVERLAP_F_B", "", "2F5"),
        ("(1B0;2F5)OVERLAP_F_B", "", "2F5"),
        ("(1B0/3;2F5)OVERLAP_F_B", "F+B/3", "2F5"),
        ("(2F5/4;1B0;0F1)OVERLAP_F_B", "F+F/4+B", "0F1"),
        ("(1W0;2I5/2)OVERLAP", "I/2+W", "2I5/2"),
    ],
)
def test_what_runs_in_lanes_has_one_name_whatever_the_order_of_its_parts(action: str, name: str, first: str) -> None:
    parsed = Action.parse(action)
    assert (lanes_text(parsed), str(of_lanes(parsed))) == (name, first)
    if name:
        check_lanes(name, "lanes")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("F", "names 'F': it takes what runs in several lanes"),
        ("F/1", "names 'F/1': it takes what runs|'F' is how"),
        ("F/2+X", "names 'F/2[+]X': it takes what runs in several lanes"),
        ("F/02", "names 'F/02': it takes what runs"),
        ("", "names '': it takes"),
        ("B/2+F", "names 'B/2[+]F': 'F[+]B/2' is how this is written"),
        ("F+B", "names 'F[+]B': a whole forward with a whole backward is 'FB'"),
    ],
)
def test_a_name_that_is_not_one_is_refused(name: str, message: str) -> None:
    with pytest.raises(CostError, match=message):
        table(lanes={name: 1.0})
