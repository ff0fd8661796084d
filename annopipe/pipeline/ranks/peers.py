"""The ranks of a pipeline, as one of them sees them: they agree before a step, and stop together during one.

A call goes through two phases. Until ``agree``, nothing has been sent: a mistake on one rank is raised on all of them,
and the pipeline can be called again. Afterwards messages are under way, so a rank that fails tells the others
(``Alarm``), everybody stops, and the process groups of the pipeline are closed for good.
"""

import hashlib
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from annopipe.errors import AnnopipeError, PipelineError
from annopipe.graphs.process_groups import host_timeout, is_distributed
from annopipe.ordering.gathering import gather, message_device
from annopipe.pipeline.places import place_of
from annopipe.pipeline.ranks.alarm import Alarm
from annopipe.pipeline.ranks.closing import reason_of, was_closed

__all__ = ["AgreedError", "Peers", "place_in"]

T = TypeVar("T")
_POLLS = 20  # in one timeout
_LONGEST_POLL_S = 1.0
_TEXT_LENGTH = 1000
_FACTS = 4  # what a rank says before its facts
_PIPELINE = "the pipeline"
_NEW = "one that was not called before"


class AgreedError(PipelineError):
    """A mistake that all ranks know of, and raise before anything is sent: nobody waits for anybody."""


class Peers:
    """This rank and the others of its pipeline.

    Args:
        group: the ranks of the pipeline, None for this one alone.
        others: further groups that this rank communicates in during a step, such as the expert-parallel one.
        timeout: how long a rank waits for another.
        facts: what has to be the same on all ranks, by its name.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        others: Sequence[dist.ProcessGroup],
        timeout: timedelta,
        facts: Mapping[str, str],
    ) -> None:
        self.group, self.timeout = group, timeout
        self._limit = timeout
        self.rank = dist.get_rank(group) if group is not None else 0
        self._facts = dict(facts)
        self._others = [other for other in others if dist.get_world_size(other) > 1]
        self._groups = [g for g in (group, *self._others) if g is not None]
        self._own_limits = _limits(self._groups)
        self._facts[_PIPELINE] = _NEW
        self._number = secrets.randbits(60)  # the user's random numbers stay as they are
        self._call = ExitStack()
        self._running = self._stopped = ""
        self._agreed = False
        self._poll_s = min(_LONGEST_POLL_S, timeout.total_seconds() / _POLLS)
        self._alarm = Alarm(self._groups, self._poll_s) if self._groups else None

    @contextmanager
    def calling(self, method: str, options: str = "") -> Iterator[None]:
        """What a call of a pipeline's method does, with the ranks' agreement and alarm.

        Args:
            method: its name.
            options: what has to be the same on all ranks for this call.

        Raises PipelineError at once when the pipeline has stopped before, and inside another call.
        """
        if self._running:
            raise PipelineError(
                f"{method} was called while {self._running} of the same pipeline runs, by an operation, a loss or "
                "another thread: call one after the other"
            )
        if self._stopped:
            raise PipelineError(
                f"this pipeline has stopped, and the connections of its process groups are closed: {self._stopped}; "
                "start the ranks again, from the last checkpoint"
            )
        self._facts |= {"call": method, "options": options}
        self._running, self._agreed = method, False
        try:
            with ExitStack() as stack:
                self._call = stack
                stack.enter_context(_limited(dict.fromkeys(self._groups, self.timeout)))
                self._listen()
                yield
        finally:
            self._running = ""

    @contextmanager
    def unhurried(self) -> Iterator[None]:
        """Ranks may take longer inside, as they do for tracing: as long as each process group itself allows."""
        usual, self._limit = self._limit, self._own_limits.get(self.group, self._limit) if self.group else self._limit
        try:
            with _limited(self._own_limits):
                yield
        finally:
            self._limit = usual

    def include(self, groups: Sequence[dist.ProcessGroup]) -> None:
        """More groups that a step communicates in."""
        new = [group for group in groups if group not in self._groups]
        self._groups += new
        self._own_limits |= _limits(new)
        self._call.enter_context(_limited(dict.fromkeys(new, self.timeout)))
        if self._alarm is not None:
            self._alarm.include(new)
        elif new:
            self._alarm = Alarm(new, self._poll_s)
            self._listen()

    def compare(self, groups: Sequence[dist.ProcessGroup]) -> None:
        """Have the ranks of other groups call alike, now and in every later agreement: or collectives would not meet.

        Raises AgreedError on every rank of such a group when they do not.
        """
        known = [_ranks(group) for group in (self.group, *self._others) if group is not None]
        new = {_ranks(group): group for group in groups if len(_ranks(group)) > 1 and _ranks(group) not in known}
        errors = [self._difference(group, self._exchange(group, [0, 0, 0, 0]), "") for group in new.values()]
        self._others += [group for group, error in zip(new.values(), errors, strict=True) if not error]
        self._others.sort(key=lambda group: group.group_name)  # one order, or they would wait for each other
        if any(errors):
            raise AgreedError(next(filter(None, errors)))

    def _listen(self) -> None:
        """For the rest of the call."""
        if self._alarm is not None:
            self._call.enter_context(_Told(self, self._alarm))
            self._call.enter_context(self._alarm)

    def agree(self, own: str, is_known: Callable[[str], bool] = lambda _: True) -> tuple[str, bool]:
        """One text for what all ranks of the pipeline say, and whether a rank has to prepare for it.

        Where this rank has further groups, such as the expert-parallel one, the pipelines beside this one say that too:
        all of them prepare, or none, since plans are made together.

        Args:
            own: what this rank says.
            is_known: whether this rank has prepared for what all say.

        Raises:
            AgreedError: a rank has failed before, or the facts differ; on every rank.
            PipelineError: not all ranks come within the timeout.
        """
        self._agreed = True  # or will have, or all stop
        return self._agreement(own, is_known, "")

    def fail(self, error: Exception) -> None:
        """Take part in the agreement with the error that this rank raises in its place."""
        text = f"{self.name(self.rank)} cannot {self._facts['call']}: {type(error).__name__}: {error}"
        self._agreement("", lambda _: True, text)

    def _agreement(self, own: str, is_known: Callable[[str], bool], error: str) -> tuple[str, bool]:
        signature, has_others = own, bool(self._others)
        if self.group is not None:
            found = self._exchange(self.group, [bool(error), has_others, _digest(own), self._number])
            error = self._difference(self.group, found, error)
            signature = " ".join(f"{said[2]:x}" for said in found)
            has_others = any(said[1] for said in found)
            if not error and self._facts[_PIPELINE] == _NEW:
                # From now on a call pairs with calls of the same pipelines only: others may look just like them.
                self._facts[_PIPELINE] = f"number {_digest(str([said[3] for said in found])) % 2**32:x}"
        is_new = not error and not is_known(signature)
        if has_others:
            for group in (*self._others, self.group):  # to the pipelines beside, and what they say to all of this one
                if group is not None:
                    found = self._exchange(group, [bool(error), is_new, 0, 0])
                    error = self._difference(group, found, error)
                    is_new = is_new or any(said[1] for said in found)
        if error:
            raise AgreedError(error)
        return signature, is_new

    def together(self, make: Callable[[], T], what: str) -> T:
        """What all ranks make at the same time, when all have made theirs.

        Raises AgreedError on every rank when one cannot.
        """
        if self.group is None:
            return make()
        made, failure = None, None
        try:
            made = make()
        except AnnopipeError as error:
            failure = error
        texts = self.gather("" if failure is None else f"{type(failure).__name__}: {failure}", what)
        for rank, text in enumerate(texts):
            if text:
                raise AgreedError(f"{what} failed on {self.name(rank)}: {text}") from failure
        return cast(T, made)

    def gather(self, item: Any, what: str, group: dist.ProcessGroup | None = None) -> list[Any]:
        """One item of every rank of the pipeline, or of another group.

        Raises PipelineError when not all come within the timeout.
        """
        group = self.group if group is None else group
        if group is None:
            return [item]
        try:
            return gather(item, group)
        except RuntimeError as error:
            raise self.lost(f"{what} of all ranks", error) from error

    def reduce(self, value: torch.Tensor, operation: Any, group: dist.ProcessGroup, what: str) -> torch.Tensor:
        """A small tensor of every rank of a group in one, on all of them.

        Raises PipelineError when not all come within the timeout.
        """
        found = value.to(message_device(group), copy=True)
        try:
            dist.all_reduce(found, operation, group=group)
        except RuntimeError as error:
            raise self.lost(f"all ranks to {what}", error) from error
        return found.to(value.device)

    def broadcast(self, item: T, source: int, what: str) -> T:
        """The item of one rank, on all of them.

        Raises PipelineError when it does not come within the timeout.
        """
        if self.group is None:
            return item
        box = [item]
        try:
            dist.broadcast_object_list(box, group=self.group, group_src=source)
        except RuntimeError as error:
            raise self.lost(f"{self.name(source)} to {what}", error) from error
        return box[0]

    def lost(self, what: str, error: Exception) -> PipelineError:
        """The error of a rank that waited in vain for others."""
        return PipelineError(
            f"waited for {what}, and that failed within {self._limit.total_seconds():g} s ({reason_of(error)}): a "
            "rank has ended, has stalled, or did not make the same call; look at the others' output"
        )

    def name(self, rank: int, group: dist.ProcessGroup | None = None) -> str:
        """A rank of the pipeline, or of another group, with its number in the whole job where that is another one."""
        found = self.group if group is None else group
        if found is None:
            return f"rank {dist.get_rank() if is_distributed() else rank}"
        everywhere = dist.get_global_rank(found, rank)
        of = "the pipeline" if found is self.group else "its group"
        return f"rank {rank}" if everywhere == rank else f"rank {rank} of {of} (rank {everywhere} of all)"

    def _exchange(self, group: dist.ProcessGroup, said: Sequence[int]) -> list[tuple[int, ...]]:
        """Four numbers of every rank, and its facts: one small collective."""
        numbers = [*said, *(_digest(text) for _, text in self._facts_in(group))]
        mine = torch.tensor(numbers, device=message_device(group))
        everyone = [torch.zeros_like(mine) for _ in range(dist.get_world_size(group))]
        try:
            dist.all_gather(everyone, mine, group=group)
        except RuntimeError as error:
            raise self.lost(f"all ranks to call {self._facts['call']}", error) from error
        return [tuple(said.tolist()) for said in everyone]

    def _facts_in(self, group: dist.ProcessGroup) -> list[tuple[str, str]]:
        """What has to be the same on all ranks of a group: across several pipelines, not which one it is."""
        return [(name, text) for name, text in self._facts.items() if name != _PIPELINE or group is self.group]

    def _difference(self, group: dist.ProcessGroup, found: Sequence[tuple[int, ...]], own_error: str) -> str:
        """What is wrong, on every rank of the group when it is on one; "" when nothing is."""
        differs = [at for at in range(_FACTS, len(found[0])) if len({said[at] for said in found}) > 1]
        if not differs and not any(said[0] for said in found):
            return ""
        told = self.gather((own_error, self._facts_in(group)), "what is wrong", group)
        for error, _ in told:
            if error:
                return str(own_error or error)
        at = differs[0] - _FACTS
        texts = [facts[at] for _, facts in told]
        rank = next(rank for rank, text in enumerate(texts) if text != texts[0])
        return (
            f"{self.name(0, group)} and {self.name(rank, group)} have different arguments, {texts[0][0]}: "
            f"{_short(texts[0][1])} and {_short(texts[rank][1])}; give all ranks the same"
        )

    @property
    def is_alone(self) -> bool:
        """Whether this rank agrees with nobody."""
        return self.group is None and not self._others

    def stop(self, text: str) -> None:
        """Remember that the pipeline cannot be called again."""
        self._stopped = text

    @property
    def has_agreed(self) -> bool:
        """Whether this call is past the agreement."""
        return self._agreed


class _Told:
    """Tells the others of an error, and adds to it what they told."""

    def __init__(self, peers: Peers, alarm: Alarm) -> None:
        self._peers, self._alarm = peers, alarm

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        peers, alarm = self._peers, self._alarm
        if error is None or isinstance(error, AgreedError) or (peers.is_alone and not peers.has_agreed):
            return
        text = (
            f"{place_of(error)}{type(error).__name__}: {error}" if not isinstance(error, PipelineError) else str(error)
        )
        if isinstance(error, Exception) and not peers.has_agreed and not alarm.heard:
            try:
                peers.fail(error)
            except AgreedError:
                return  # the others know; this rank raises its own
            except PipelineError as lost:
                text = f"{text}; {lost}"
        cause = alarm.heard or (alarm.ask() if was_closed(error) else "")
        stopped = f"{peers.name(peers.rank)} stopped: {text}"[:_TEXT_LENGTH]
        if cause:
            alarm.close()
        else:
            alarm.tell(stopped)
        silent = [peers.name(rank) for rank in alarm.silent()] if peers.group is not None else []
        nobody = f"\nno word from {', '.join(silent)}" if silent else ""
        peers.stop((cause or stopped) + nobody)
        if isinstance(error, Exception):
            raise PipelineError(f"{cause}\nso {stopped}{nobody}" if cause else f"{stopped}{nobody}") from error


Limits = dict[dist.ProcessGroup, timedelta]


def _limits(groups: Sequence[dist.ProcessGroup]) -> Limits:
    """The time limits of those groups for which the host waits."""
    return {group: limit for group in groups if (limit := host_timeout(group)) is not None}


@contextmanager
def _limited(limits: Limits) -> Iterator[None]:
    """Whatever is issued in the groups has these limits."""
    before = _limits(list(limits))
    try:
        for group in before:
            group.set_timeout(limits[group])
        yield
    finally:
        for group, limit in before.items():
            group.set_timeout(limit)


def _ranks(group: dist.ProcessGroup) -> tuple[int, ...]:
    return tuple(dist.get_process_group_ranks(group))


def _digest(text: str) -> int:
    return int(hashlib.sha256(text.encode()).hexdigest()[:15], 16)


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:60]}... (of {len(text)} characters)"


def place_in(group: dist.ProcessGroup | None) -> tuple[int, int, dist.ProcessGroup | None]:
    """This rank and the size of the pipeline; the group is None when it is this rank alone."""
    if group is None and not (dist.is_available() and dist.is_initialized()):
        return 0, 1, None
    found = group if group is not None else dist.group.WORLD
    size = dist.get_world_size(found)
    return dist.get_rank(found), size, found if size > 1 else None
