import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.netlab import NetLab, NetLabError, sweep
from benchmarks.netlab.ownership import NAMESPACES, Owner
from benchmarks.netlab.units import rate_bytes_per_s, size_bytes
from tests.processes import alive, signalled_process

RECEIVER = """
import socket, struct, sys
server = socket.create_server((sys.argv[1], 9000))
print("listening", flush=True)
connection, _ = server.accept()
while header := connection.recv(8, socket.MSG_WAITALL):
    left = struct.unpack("!Q", header)[0]
    while left:
        left -= len(connection.recv(min(left, 1 << 20)))
    connection.sendall(b"k")
"""
SENDER = """
import socket, struct, sys, time
connection = socket.create_connection((sys.argv[1], 9000))
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
for size in map(int, sys.argv[2:]):
    data = bytes(size)
    time.sleep(0.2)
    start = time.perf_counter()
    connection.sendall(struct.pack("!Q", size))
    connection.sendall(data)
    connection.recv(1)
    print(size / (time.perf_counter() - start))
"""
OWNER = """
import subprocess, sys, time
from benchmarks.netlab import NetLab
with NetLab(2) as lab:
    sleeper = subprocess.Popen(lab.command(1, ["sleep", "100"]))
    print(*lab.namespaces, sleeper.pid, flush=True)
    time.sleep(100)
"""


def bytes_per_s(lab: NetLab, sizes: list[int]) -> list[float]:
    """What rank 0 achieves for messages of these sizes to rank 1, each after a pause."""
    listen = lab.command(1, [sys.executable, "-c", RECEIVER, lab.address(1)])
    send = lab.command(0, [sys.executable, "-c", SENDER, lab.address(1), *map(str, sizes)])
    with subprocess.Popen(listen, stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == "listening\n"
        rates = subprocess.run(send, check=True, capture_output=True, text=True).stdout
    return [float(line) for line in rates.split()]


def present(namespaces: list[str]) -> list[str]:
    return [name for name in namespaces if (NAMESPACES / name).exists()]


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 60
    while alive(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@contextmanager
def owner_process() -> Iterator[tuple[subprocess.Popen[str], list[str], int]]:
    """Another process with a lab: its handle, the lab's namespaces, and a process inside."""
    with signalled_process([sys.executable, "-c", OWNER]) as process:
        assert process.stdout is not None
        *namespaces, sleeper = process.stdout.readline().split()
        assert len(present(namespaces)) == 3
        yield process, namespaces, int(sleeper)


@pytest.mark.root
def test_the_rate_is_achieved_and_a_pause_earns_little() -> None:
    with NetLab(2, rate="400mbit") as lab:
        rates = [rate / lab.bytes_per_s for rate in bytes_per_s(lab, [8 << 20] * 3 + [256 << 10] * 7)]
    long, short = rates[:3], rates[3:]
    # Another program on the machine can only slow a transfer down.
    assert 0.5 < max(long) < 1.02
    assert 0.4 < max(short) < 1.15


@pytest.mark.root
def test_a_slow_rate_is_achieved_too() -> None:
    with NetLab(2, rate="80mbit") as lab:
        assert 0.9 < max(bytes_per_s(lab, [1 << 20] * 3)) / lab.bytes_per_s < 1.1


@pytest.mark.root
def test_a_shared_medium_limits_all_ranks_together() -> None:
    size = 4 << 20
    with NetLab(4, rate="200mbit", shared=True) as lab:
        alone = max(bytes_per_s(lab, [size] * 2)) / lab.bytes_per_s
        listen = [lab.command(rank, [sys.executable, "-c", RECEIVER, lab.address(rank)]) for rank in (1, 3)]
        receivers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in listen]
        assert [r.stdout.readline() for r in receivers if r.stdout] == ["listening\n"] * 2
        pairs = ((0, 1), (2, 3))
        send = [lab.command(a, [sys.executable, "-c", SENDER, lab.address(b), str(size)]) for a, b in pairs]
        started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in send]
        together = sum(float(process.communicate()[0]) for process in started) / lab.bytes_per_s
        for receiver in receivers:
            receiver.communicate()
    assert 0.9 < alone < 1.05
    assert together < 1.5, "two pairs get no more than one"


@pytest.mark.root
def test_each_rank_has_its_address_and_reaches_the_others() -> None:
    with NetLab(3) as lab:
        for rank in range(3):
            shown = subprocess.check_output(
                lab.command(rank, ["ip", "-br", "address", "show", lab.interface]), text=True
            )
            assert shown.split()[2:] == [f"10.77.0.{rank + 1}/24"]
        assert len(bytes_per_s(lab, [1])) == 1


@pytest.mark.root
def test_nothing_is_left_after_the_block() -> None:
    links = sorted(Path("/sys/class/net").iterdir())
    with NetLab(2) as lab:
        namespaces = lab.namespaces
        assert present(namespaces) == namespaces
        assert sorted(Path("/sys/class/net").iterdir()) == links
        sleeper = subprocess.Popen(lab.command(0, ["sleep", "100"]))
    assert present(namespaces) == []
    assert sleeper.wait(timeout=60) == -signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with pytest.raises(NetLabError, match="not set up"):
        lab.command(0, ["true"])


@pytest.mark.root
def test_nothing_is_left_after_an_exception() -> None:
    namespaces: list[str] = []
    with pytest.raises(ZeroDivisionError), NetLab(2) as lab:
        namespaces += lab.namespaces
        raise ZeroDivisionError
    assert len(namespaces) == 3
    assert present(namespaces) == []


@pytest.mark.root
def test_nothing_is_left_when_setting_up_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    namespaces: list[str] = []
    add_rank = NetLab._add_rank

    def fail_at_the_second(self: NetLab, rank: int, switch: str) -> None:
        add_rank(self, rank, switch)
        if rank == 1:
            namespaces.extend(self.namespaces)
            raise KeyboardInterrupt

    monkeypatch.setattr(NetLab, "_add_rank", fail_at_the_second)
    with pytest.raises(KeyboardInterrupt), NetLab(2):
        pass
    assert len(namespaces) == 3
    assert present(namespaces) == []


@pytest.mark.root
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_takes_the_lab_down(number: signal.Signals) -> None:
    with owner_process() as (process, namespaces, sleeper):
        process.send_signal(number)
        assert process.wait(timeout=120) in (128 + number, -number)
        assert present(namespaces) == []
        assert gone(sleeper)


@pytest.mark.root
def test_sweep_removes_the_lab_of_a_killed_process_and_what_runs_in_it() -> None:
    with owner_process() as (process, namespaces, sleeper):
        process.kill()
        process.wait(timeout=120)
        sweep()
        assert present(namespaces) == []
        assert gone(sleeper)


@pytest.mark.root
def test_a_new_lab_removes_the_lab_of_a_killed_process_that_nobody_has_reaped() -> None:
    with owner_process() as (process, namespaces, _):
        process.kill()
        assert gone(process.pid)
        with NetLab(1):
            assert present(namespaces) == []


@pytest.mark.root
def test_two_labs_at_once_do_not_disturb_each_other() -> None:
    with NetLab(2) as first, NetLab(2) as second:
        assert set(first.namespaces).isdisjoint(second.namespaces)
        assert sweep() == []
        assert len(bytes_per_s(first, [1000])) == len(bytes_per_s(second, [1000])) == 1


def test_an_owner_is_one_process_and_not_its_pid() -> None:
    me = Owner.current()
    assert me.alive()
    assert not Owner(me.pid, me.start + 1).alive()
    with subprocess.Popen(["sleep", "0"]) as child:
        # Ended, and not reaped until the end of the block.
        assert gone(child.pid)
        assert Owner(child.pid, 0).alive() is False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ranks": 0}, "ranks=0: give a whole number from 1 to 250"),
        ({"ranks": 251}, "ranks=251: give a whole number"),
        ({"ranks": 2, "rate": "400"}, "rate='400': give a positive number and one of kbit, mbit, gbit"),
        ({"ranks": 2, "rate": "0mbit"}, "rate='0mbit': give a positive number"),
        ({"ranks": 2, "rate": "400mb"}, "rate='400mb': give a positive number"),
        ({"ranks": 2, "rate": "1mbit; reboot"}, "rate='1mbit; reboot': give a positive number"),
        ({"ranks": 2, "burst": "16"}, "burst='16': give a positive number and one of b, kb, mb"),
        ({"ranks": 2, "burst": "8kb"}, "burst='8kb': a packet of 9014 bytes would never pass"),
        ({"ranks": 4, "media": 2}, "media=2: 4 ranks are dealt to them equally, and only with shared=True"),
        ({"ranks": 4, "media": 3, "shared": True}, "media=3: 4 ranks are dealt to them equally"),
        ({"ranks": 2, "latency_ms": 0}, "latency_ms=0: give a positive number of milliseconds"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(NetLabError, match=message):
        NetLab(**arguments)


def test_a_rank_outside_the_lab_is_refused() -> None:
    with pytest.raises(NetLabError, match="rank 2 is not in this lab: it has ranks 0 to 1"):
        NetLab(2).address(2)


def test_a_missing_program_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(NetLabError, match="no network lab here: ip and tc not found: install iproute2"), NetLab(1):
        pass


def test_without_root_the_reason_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NetLabError, match="network namespaces need root"), NetLab(1):
        pass


def test_units_are_those_of_tc() -> None:
    assert rate_bytes_per_s("400mbit") == 50e6
    assert rate_bytes_per_s("1.5gbit") == 187.5e6
    assert size_bytes("16kb") == 16384
    assert size_bytes("9014b") == 9014
