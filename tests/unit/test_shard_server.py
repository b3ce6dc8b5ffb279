"""The server of a shard (heddle/shards/server.py): what is killed ends alone, and the next command works."""

from __future__ import annotations

import os
import pty
import random
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO

import pytest

from heddle.base import state
from heddle.base.problems import MachineError
from heddle.base.process import start_of
from heddle.base.version import VERSION
from heddle.fabric.fabricfile import load_fabric
from heddle.lab import opening
from heddle.runtimes.shardcalls import AGENT, CLOCK, AgentCall
from heddle.shards import server
from heddle.spec.plain import dump_spec
from tests.machine import until
from tests.objects.shared import ROOT

BECOME = "import os, sys\nos.execvp(sys.argv[1], sys.argv[1:])\n"  # as heddle.shards.inside does
KILLS = 20
SHORT_SLEEPS = "while :; do sleep 0.1; done"  # a shell that begins a long one just then would trap the signal after it


class Shard:
    """A server as an ordinary process, with a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.place = directory / "a place"
        (directory / "become.py").write_text(BECOME)
        env = {**os.environ, "PYTHONPATH": f"{ROOT}:{directory}", "HEDDLE_STATE_DIR": str(directory / "state")}
        argv = [sys.executable, "-P", "-m", "heddle.shards.server", str(self.place)]
        self.process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE)
        assert self.process.stdout is not None and self.process.stdout.readline() == b"ready\n"

    @property
    def relay(self) -> str:
        return str(self.place / "run")

    def open(self, argv: Sequence[str], errors: IO[bytes] | int = subprocess.PIPE) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        return subprocess.Popen([self.relay, *argv], stdin=pipe, stdout=pipe, stderr=errors)

    def become(self, *argv: str) -> subprocess.Popen[bytes]:
        return self.open(["become", *argv])

    def ran(self, *argv: str, data: bytes = b"") -> tuple[int, bytes, bytes]:
        with self.become(*argv) as process:
            out, err = process.communicate(data, timeout=240)
        return process.returncode, out, err

    def agent(self) -> AgentCall:
        return AgentCall("s1", partial(self.open, [AGENT]), lambda: None)

    def children(self, pid: int) -> list[int]:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    @property
    def server(self) -> int:
        until(lambda: self.children(self.process.pid))
        return self.children(self.process.pid)[0]

    def relays(self) -> list[int]:
        return [pid for pid in self.children(os.getpid()) if pid != self.process.pid]

    def commands(self) -> list[int]:
        return self.children(self.server)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shard]:
    made = Shard(tmp_path_factory.mktemp("s"))
    yield made
    server = os.pidfd_open(made.server)
    made.process.terminate()
    assert made.process.wait(20) == 128 + signal.SIGTERM
    assert select.select([server], [], [], 20)[0], "the server ends with its first process"
    os.close(server)
    assert made.process.stdout is not None
    made.process.stdout.close()


@pytest.fixture
def shard(one: Shard) -> Iterator[Shard]:
    """It has no command before and after a test, and works."""
    yield one
    until(lambda: not one.commands())
    assert one.ran("echo", "works") == (0, b"works\n", b"")


def asked(agent: AgentCall) -> int:
    return int(agent.call({"call": CLOCK, "args": [], "kwargs": {}}))


def ready(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"


def test_a_command_has_the_streams_of_its_relay_and_its_exit_code(shard: Shard) -> None:
    data = os.urandom(3 << 20)
    assert shard.ran("cat", data=data) == (0, data, b"")
    assert shard.ran("sh", "-c", "cat; echo err >&2; exit 7", data=b"in") == (7, b"in", b"err\n")
    assert shard.ran("sh", "-c", "kill -9 $$")[0] == 128 + signal.SIGKILL
    with shard.open(["nonesuch"]) as process:
        assert b"No module named nonesuch" in process.communicate()[1]
    assert process.returncode == 1
    assert shard.ran("sh", "-c", "ls /proc/$$/fd") == (0, b"0\n1\n2\n", b""), "nothing of the server's is open in it"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_passes_to_the_command_and_to_what_it_has_started(shard: Shard, number: signal.Signals) -> None:
    child = f"(trap 'echo child; exit 0' {number.value}; echo ready; {SHORT_SLEEPS})"
    script = f"trap 'echo got it; exit 5' {number.value}; {child}; {SHORT_SLEEPS}"
    with shard.become("sh", "-c", script) as process:
        ready(process)
        process.send_signal(number)
        assert process.communicate(timeout=120)[0] == b"child\ngot it\n"
        assert process.returncode == 5


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may take a terminal from another session")
def test_a_terminal_is_that_of_the_command(shard: Shard) -> None:
    script = "stty size; trap 'echo got it; exit 5' INT; echo ready; " + SHORT_SLEEPS
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(shard.relay, [shard.relay, "become", "sh", "-c", script])
    termios.tcsetwinsize(terminal, (33, 77))
    said = b""
    while b"ready" not in said:
        said += os.read(terminal, 1024)
    assert b"33 77" in said
    os.write(terminal, b"\x03")
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 5
    assert b"got it" in os.read(terminal, 1024)
    os.close(terminal)


def test_only_root_of_the_shard_may_connect(shard: Shard) -> None:
    modes = {each.name: each.stat().st_mode & 0o777 for each in (shard.place, *shard.place.iterdir())}
    assert modes == {"a place": 0o700, "run": 0o700, "relay.py": 0o600, "socket": 0o600}


def test_an_agent_that_is_killed_ends_alone(shard: Shard) -> None:
    victim, other = shard.agent(), shard.agent()
    try:
        os.kill(min(shard.commands()), signal.SIGKILL)
        with pytest.raises(MachineError, match="its agent"):
            asked(victim)
        assert asked(other) > 0
    finally:
        victim.close()
        other.close()


@pytest.mark.parametrize("script", ["sleep 600", "trap '' TERM; while :; do sleep 1; done"])
def test_a_relay_that_is_killed_ends_its_command(shard: Shard, script: str) -> None:
    with shard.become("sh", "-c", f"echo ready; {script}") as process:
        ready(process)
        process.kill()


def test_two_verbs_at_once_share_nothing(shard: Shard) -> None:
    with ThreadPoolExecutor(8) as pool:
        words = [str(number) * 1000 for number in range(16)]
        assert [out.decode() for _, out, _ in pool.map(partial(shard.ran, "printf"), words)] == words


def test_twenty_kills_leave_nothing(shard: Shard) -> None:
    dice = random.Random(55)
    for _ in range(KILLS):
        agent = shard.agent()
        try:
            victim = dice.choice([*shard.relays(), *shard.commands()])
            killer = threading.Timer(dice.random() / 20, partial(os.kill, victim, signal.SIGKILL))
            killer.start()
            with suppress(MachineError):
                for _ in range(5):
                    asked(agent)
            killer.join()
        finally:
            agent.close()


def test_a_socket_that_is_gone_is_made_again(shard: Shard) -> None:
    (shard.place / "socket").unlink()
    (shard.place / "run").unlink()
    until((shard.place / "socket").exists)
    assert shard.ran("echo", "again") == (0, b"again\n", b"")


def test_a_server_that_is_killed_takes_its_commands_with_it_and_starts_again(shard: Shard) -> None:
    before = shard.server
    with shard.become("sh", "-c", "echo ready; exec sleep 600") as process:
        ready(process)
        (command,) = shard.commands()
        os.kill(before, signal.SIGKILL)
        _, err = process.communicate(timeout=120)
    assert (process.returncode, err.count(b"\n")) == (69, 1)
    assert err.startswith(b"the server of agents in this shard does not answer: it has ended")
    until(lambda: start_of(command) is None)
    assert shard.ran("echo", "again") == (0, b"again\n", b"")  # it waits for the new server
    assert shard.server != before


def test_who_connects_and_sends_nothing_hinders_nobody(shard: Shard) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.connect(str(shard.place / "socket"))
        assert shard.ran("echo", "works") == (0, b"works\n", b"")
        silent.send(b"words without streams")
        assert silent.recv(1) == b""


def test_an_image_without_a_server_is_named(tmp_path: Path) -> None:
    def start(errors: IO[bytes]) -> subprocess.Popen[bytes]:
        argv = ["sh", "-c", f"exec {tmp_path}/run {AGENT}"]  # as exec in a pod: a missing command is no error here
        return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)

    with pytest.raises(MachineError, match=r"its pod +has no server of agents: its image is of an older Heddle"):
        AgentCall("s1", start, lambda: None)


def test_fabrics_are_built_before_commands_need_them_and_a_damaged_record_hinders_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEDDLE_STATE_DIR", str(tmp_path))
    monkeypatch.setattr(server, "_LATER", ())
    for name, spec in (("a", {"name": "a", "shape": "nonesuch"}), ("b", dump_spec(load_fabric("tiny", name="b").spec))):
        state.write_record(state.Record(name, "netns", "running", spec, version=VERSION))
    opening._of_spec.cache_clear()
    preparing = server._later()
    next(preparing)
    next(preparing)
    before = opening._of_spec.cache_info()
    record = state.read_record("b")
    assert record is not None
    assert "expected_next_hops" in vars(opening.reopened(record).fabric)
    after = opening._of_spec.cache_info()
    assert (after.misses, after.hits) == (before.misses, before.hits + 1)
