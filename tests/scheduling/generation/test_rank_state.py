from annopipe.scheduling import placement
from annopipe.scheduling.generation.limits import Begun
from annopipe.scheduling.generation.rank_state import RankState
from annopipe.scheduling.generation.rules import Rules
from annopipe.scheduling.numbering import Numbering
from annopipe.scheduling.spec import ScheduleSpec


class Driven:
    """A rank state that is spoken to in texts."""

    def __init__(self, where=None, microbatches=4, **fields):
        self.spec = ScheduleSpec(placement.v(1) if where is None else where, microbatches, **fields)
        self.rules = Rules.of(self.spec)
        self.state = RankState(self.rules, 0, Begun(self.rules))
        self.numbering = Numbering(self.spec.placement.stages, microbatches)

    def ready(self, *texts):
        for text in texts:
            kind, pair = divmod(self.number(text), self.numbering.block)
            if kind == 0:
                self.state.forward_ready(pair)
            elif kind == 3:
                self.state.weights.append(pair)
            else:
                self.state.backward_ready(pair, split=kind == 2)

    def number(self, text):
        return next(n for n in range(4 * self.numbering.block) if self.numbering.text(n) == text)

    def take(self):
        chosen, why = self.state.choose()
        self.state.take(chosen)
        return "&".join(map(self.numbering.text, chosen)), why

    def take_all(self):
        return " ".join(iter(lambda: self.take()[0], ""))


ALL = ("B", "I", "F", "W")


def test_the_most_urgent_kind_comes_first_and_in_it_the_first_turn():
    rank = Driven(priority=("I", "F", "W"))
    rank.ready("0F1", "0F0", "0W0", "1I1", "0I1", "1I0")
    assert rank.take_all() == "1I0 1I1 0I1 0F0 0F1 0W0"
    assert rank.take() == ("", "")


def test_weights_come_in_the_order_of_their_inputs():
    rank = Driven(priority=("W", "I", "F"))
    rank.ready("0W2", "1W0", "0W1")
    assert rank.take_all() == "0W2 1W0 0W1"


def test_a_limit_lets_another_stage_pass():
    rank = Driven(in_flight="c + 1")
    rank.ready("0F0", "0F1", "1F0")
    assert rank.take_all() == "0F0 1F0"


def test_pairs_run_whenever_both_are_ready():
    rank = Driven(pair=("F", "B"), priority=("F", "B"))
    rank.ready("0F0", "0F1", "1B0")
    assert rank.take() == ("0F0&1B0", "both are ready, and the rules pair them")
    assert rank.take() == ("0F1", "F is the most urgent kind that may run; it is its turn")


def test_a_pair_makes_room_for_its_own_forward():
    rank = Driven(placement.linear(1), pair=("F", "B"), in_flight=1)
    rank.ready("0F0", "0F1", "0F2")
    assert rank.take_all() == "0F0"
    rank.ready("0B0")
    assert rank.take()[0] == "0F1&0B0"


def test_weights_make_no_room_in_flight():
    rank = Driven(placement.linear(1), pair=("F", "W"), priority=("F", "I", "W"), in_flight=1)
    rank.ready("0F0", "0F1")
    assert rank.take_all() == "0F0"
    rank.ready("0W0")
    assert rank.take()[0] == "0W0"


def test_a_backward_without_a_partner_is_split():
    rank = Driven(pair=("F", "B"), priority=ALL, split_backward="unpaired")
    rank.ready("1B0", "1B1", "0F0")
    assert rank.take()[0] == "0F0&1B0"
    assert rank.take() == ("1I1", "B is the most urgent kind that may run; without a partner it is split")


def test_a_strict_order_is_waited_for_and_others_fill_in():
    rank = Driven(in_order=(("F", "k, c"),), priority=("B", "F"))
    rank.ready("0F0", "0F1", "1B3")
    assert rank.take() == ("0F0", "it is the next in the strict order")
    assert rank.take()[0] == "1B3"
    assert rank.take()[0] == ""
    rank.ready("1F0")
    assert rank.take_all() == "1F0 0F1"


def test_a_pair_takes_its_forward_in_the_strict_order():
    rank = Driven(in_order=(("F", "-k"),), pair=("F", "B"))
    rank.ready("0F0", "0F1", "1B0")
    assert rank.take()[0] == "1B0"
    rank.ready("0F3", "1B1")
    assert rank.take()[0] == "0F3&1B1"


def test_a_strict_backward_may_be_split_for_want_of_a_partner():
    rank = Driven(in_order=(("B", "k, -c"),), pair=("F", "B"), priority=ALL, split_backward="unpaired")
    rank.ready("0B0", "1B0", "1B1")
    assert rank.take()[0] == "1I0"
    rank.ready("0F2")
    assert rank.take_all() == "0F2&0B0 1I1"


def test_strict_weights_wait_for_their_turn():
    rank = Driven(in_order=(("W", "-k, c"),), priority=("W", "I", "F"))
    rank.ready("0W0", "0W3", "0F0")
    assert rank.take_all() == "0W3 0F0"


def test_where_room_is_short_it_is_kept_for_the_oldest_microbatch():
    two = placement.custom([0, 0], [])
    rank = Driven(two, in_flight=3)
    rank.ready("0F0", "0F1", "0F2")
    # Each microbatch takes two: there is room for one more that is begun, not for a third.
    assert rank.take_all() == "0F0 0F1"
    rank.ready("1F1")
    assert rank.take()[0] == ""
    rank.ready("1F0")
    assert rank.take()[0] == "1F0"


def test_a_refused_microbatch_does_not_hide_one_that_may_run():
    two = placement.custom([0, 0], [])
    rank = Driven(two, in_flight=3, traversal="k")
    rank.ready("0F1", "1F2")
    assert rank.take_all() == "0F1 1F2"
    rank.ready("1F0", "1F1")
    assert rank.take()[0] == "1F1"


def test_candidates_say_what_refuses_them():
    rank = Driven(in_flight=2, in_order=(("B", "k, -c"),))
    rank.ready("0F0", "1F0")
    assert rank.take_all() == "0F0 1F0"
    rank.ready("0F1", "0B0", "1B1")
    found = {candidate.action: candidate.refused for candidate in rank.state.candidates()}
    assert found == {
        "0F1": "over the limit: 2 of 2 in flight; what is begun must be finished",
        "0B0": "must wait: 1B0 is next in the strict order",
        "1B1": "must wait: 1B0 is next in the strict order",
    }
