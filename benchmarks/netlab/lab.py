r"""One lab: a namespace per rank, a bridge between them, a rate limit on what each rank sends.

    rank 0: eth0 --tbf-->  p0 \
    rank 1: eth0 --tbf-->  p1 - br0, in a namespace of its own, so that the machine's own network is not touched
    rank 2: eth0 --tbf-->  p2 /

With `shared=True` the limit is one for all: what the ranks send goes through one bucket behind the bridge's ports.

    rank 0: eth0 -->  p0 \
    rank 1: eth0 -->  p1 -> ifb0 --tbf--> br0

With `media=2` the first half of the ranks shares one such bucket and the second half another, as nodes of a cluster do.

Gloo announces that it can receive on the connection on which it sends. On links of their own, a rank that is a little
late sends its data first and the announcement behind it, so its partner's data waits: two ranks fall into sending in
turns and stay there (an exchange of 512 KB each way at 400 mbit takes 11 ms or 21 ms). On a shared medium both cases
take the same time, so what is measured there can be predicted.

The choices below were measured with plain TCP between two ranks at 400 mbit (8 MB in a row, 256 KB after a pause). They
keep the achieved rate within 1% of the limit, and 256 KB after a pause at most 4% too fast, for a fifth of the
processor time of untuned devices (0.02 s instead of 0.11 s per 8 MB):
- 9000-byte packets: headers take 0.7% of the rate instead of 4.6%.
- `gso_max_size` below the bucket: TCP's own large packets pass the bucket whole. Larger ones would be cut up there.
- a bucket (burst) of one large packet and a little slack: what a rank may send at once after a pause.
- reno, without a new slow start after a pause: BBR, the default of some machines, paces by its own estimate and slows
  down every few seconds to measure again.
"""

import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType

from benchmarks.netlab.commands import run
from benchmarks.netlab.errors import NetLabError
from benchmarks.netlab.ownership import Owner
from benchmarks.netlab.removal import remove, sweep
from benchmarks.netlab.units import rate_bytes_per_s, size_bytes
from benchmarks.signals import exit_on_signals

_MTU_BYTES = 9000
_FRAME_BYTES = _MTU_BYTES + 14
_MAX_RANKS = 250
_SYSCTLS = {"tcp_congestion_control": "reno", "tcp_slow_start_after_idle": "0"}


class NetLab:
    """A network of `ranks` namespaces that each send at most `rate`; taken down at the end of the `with` block.

    It is also taken down on an exception, on SIGINT, SIGTERM and SIGHUP. After SIGKILL, the machine's next lab does it.

    Example:
        with NetLab(2, rate="400mbit") as lab:
            subprocess.run(lab.command(0, ["ping", "-c", "1", lab.address(1)]))

    Args:
        ranks: how many ranks, 1 to 250.
        rate: what each rank may send: kbit, mbit or gbit. What it receives is not limited.
        burst: what a rank may send at once after a pause; at least one packet, 9014 bytes. Above 800 mbit, take 32kb.
        latency_ms: how long a packet may wait for its turn before it is dropped.
        shared: whether `rate` limits all ranks together, as on one medium, instead of each of them.
        media: with `shared`, how many media there are; each is for the same number of neighbouring ranks.

    Raises:
        NetLabError: an argument is out of range, or (on entering) the machine cannot do this: see `available`.
    """

    interface = "eth0"

    def __init__(
        self,
        ranks: int,
        rate: str = "400mbit",
        burst: str = "16kb",
        latency_ms: float = 50,
        *,
        shared: bool = False,
        media: int = 1,
    ) -> None:
        if not isinstance(ranks, int) or not 1 <= ranks <= _MAX_RANKS:
            raise NetLabError(f"ranks={ranks!r}: give a whole number from 1 to {_MAX_RANKS}")
        if not latency_ms > 0:
            raise NetLabError(f"latency_ms={latency_ms!r}: give a positive number of milliseconds")
        if size_bytes(burst) < _FRAME_BYTES:
            raise NetLabError(f"burst={burst!r}: a packet of {_FRAME_BYTES} bytes would never pass; give 9kb or more")
        if media < 1 or ranks % media or (media > 1 and not shared):
            raise NetLabError(f"media={media}: {ranks} ranks are dealt to them equally, and only with shared=True")
        self.ranks = ranks
        self.rate = rate
        self.burst = burst
        self.latency_ms = latency_ms
        self.shared = shared
        self.media = media
        self.bytes_per_s = rate_bytes_per_s(rate)
        self._name: str | None = None
        self._stack = ExitStack()

    def address(self, rank: int) -> str:
        """The IPv4 address of a rank."""
        return f"10.77.0.{self._checked(rank) + 1}"

    def command(self, rank: int, argv: Sequence[str]) -> list[str]:
        """The command line that runs `argv` on a rank; the process that it starts becomes `argv`, with the same PID."""
        return ["ip", "netns", "exec", self._namespace(f"r{self._checked(rank)}"), *argv]

    @property
    def namespaces(self) -> list[str]:
        """The names of the ranks' namespaces, and of the one with the bridge."""
        return [*(self._namespace(f"r{rank}") for rank in range(self.ranks)), self._namespace("switch")]

    def __enter__(self) -> "NetLab":
        if self._name is not None:
            raise NetLabError("this lab is already set up: make another NetLab")
        if reason := _obstacle():
            raise NetLabError(f"no network lab here: {reason}")
        with ExitStack() as stack:
            stack.enter_context(exit_on_signals())
            sweep()
            self._name = Owner.current().new_lab()
            stack.callback(self._remove)
            self._set_up()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _set_up(self) -> None:
        switch = self._namespace("switch")
        run(["ip", "netns", "add", switch])
        run(["ip", "-n", switch, "link", "add", "br0", "mtu", str(_MTU_BYTES), "type", "bridge"])
        run(["ip", "-n", switch, "link", "set", "br0", "up"])
        for medium in range(self.media if self.shared else 0):
            run(["ip", "-n", switch, "link", "add", f"ifb{medium}", "type", "ifb"])
            run(["ip", "-n", switch, "link", "set", f"ifb{medium}", "mtu", str(_MTU_BYTES), "up"])
            self._limit(switch, f"ifb{medium}")
        for rank in range(self.ranks):
            self._add_rank(rank, switch)

    def _add_rank(self, rank: int, switch: str) -> None:
        own, port, mtu = self._namespace(f"r{rank}"), f"p{rank}", ["mtu", str(_MTU_BYTES)]
        gso_max = min(max(size_bytes(self.burst) * 9 // 16, _FRAME_BYTES), 65536)
        run(["ip", "netns", "add", own])
        run(["ip", "-n", switch, "link", "add", port, *mtu, "type", "veth", "peer", "name", "eth0", *mtu, "netns", own])
        run(["ip", "-n", switch, "link", "set", port, "master", "br0", "up"])
        run(["ip", "-n", own, "link", "set", "lo", "up"])
        run(["ip", "-n", own, "address", "add", f"{self.address(rank)}/24", "dev", "eth0"])
        # No IPv6 address: gloo binds to the first address of an interface.
        run(["ip", "-n", own, "link", "set", "eth0", "gso_max_size", str(gso_max), "addrgenmode", "none", "up"])
        if self.shared:
            run(["tc", "-n", switch, "qdisc", "add", "dev", port, "ingress"])
            everything = ["protocol", "all", "u32", "match", "u32", "0", "0"]
            through = ["action", "mirred", "egress", "redirect", "dev", f"ifb{rank * self.media // self.ranks}"]
            run(["tc", "-n", switch, "filter", "add", "dev", port, "parent", "ffff:", *everything, *through])
        else:
            self._limit(own, "eth0")
        script = "".join(f"echo {value} > /proc/sys/net/ipv4/{name}; " for name, value in _SYSCTLS.items())
        run(self.command(rank, ["sh", "-ec", script]))

    def _limit(self, namespace: str, device: str) -> None:
        waiting_ms = self.latency_ms * (self.ranks // self.media if self.shared else 1)
        bucket = ["rate", self.rate, "burst", self.burst, "latency", f"{waiting_ms:g}ms"]
        run(["tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", *bucket])

    def _remove(self) -> None:
        remove(self.namespaces)
        self._name = None

    def _namespace(self, role: str) -> str:
        if self._name is None:
            raise NetLabError("this lab is not set up: use it inside `with NetLab(...) as lab:`")
        return f"{self._name}-{role}"

    def _checked(self, rank: int) -> int:
        if not 0 <= rank < self.ranks:
            raise NetLabError(f"rank {rank} is not in this lab: it has ranks 0 to {self.ranks - 1}")
        return rank


def available() -> str | None:
    """None if labs work on this machine, else the reason why not. Sets one up to find out, and takes it down again."""
    try:
        with NetLab(1), NetLab(1, shared=True):
            return None
    except NetLabError as error:
        return str(error)


def _obstacle() -> str | None:
    if sys.platform != "linux":
        return "network namespaces need Linux"
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [program for program in ("ip", "tc") if shutil.which(program) is None]
    return f"{' and '.join(missing)} not found: install iproute2" if missing else None
