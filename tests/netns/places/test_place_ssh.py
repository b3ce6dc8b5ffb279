"""--on ssh: against a real OpenSSH server on loopback: the same verb, over there, as if it were here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.machine import children_of, commands, patience
from tests.marks import long
from tests.sshd import NEEDS, SshServer, until
from tests.terminal import on_terminal

pytestmark = NEEDS

Leftovers = Callable[[str], list[str]]


@pytest.fixture
def name(server: SshServer, lab_name: Callable[[], str], leftovers: Leftovers) -> Iterator[str]:
    """The name of a lab on the server, that goes down with the test."""
    chosen = lab_name()
    yield chosen
    if leftovers(chosen) or (server.spot / "server state/labs" / chosen).exists():
        server.inv("down", chosen)


def line_with(process: subprocess.Popen[str], word: str) -> str:
    """Read stderr up to a line that holds the word."""
    assert process.stderr
    for line in process.stderr:
        if word in line:
            return line
    raise AssertionError(f"it ended without a word of {word}")


def cut(server: SshServer) -> None:
    """End the server's side of every connection, as when a machine is switched off."""
    for pid in server.sessions():
        for inner in [*children_of(pid), pid]:
            if Path("/proc", str(inner), "comm").read_text().strip().startswith("sshd"):
                os.kill(inner, signal.SIGKILL)


@pytest.mark.deep
def test_a_lab_runs_on_the_server_and_commands_in_its_nodes(server: SshServer, name: str, leftovers: Leftovers) -> None:
    up = server.inv("up", "tiny", "--name", name)
    assert (up.returncode, up.stdout.split(" ")[0]) == (0, name), up.stderr
    assert "converge: 4 switches have all next hops" in up.stderr
    labs = json.loads(server.inv("status", "--format=json").stdout)["labs"]
    assert [(lab["lab"], lab["converged"]) for lab in labs] == [(name, True)]
    assert "no lab is running" in server.inv("status", place="here").stdout
    run = server.inv("run", "--lab", name, "--size", "64K", "--format", "json")
    assert (run.returncode, json.loads(run.stdout)["lab"]) == (0, name)
    words = ["exec", "--lab", name, "host1", "sh", "-c"]
    big = "0123456789abcde\n" * 300_000  # more than any buffer on the way
    done = server.inv(*words, "tr a-z A-Z; echo 'two words' >&2; exit 7", stdin=big)
    assert (done.returncode, done.stdout == big.upper(), done.stderr) == (7, True, "two words\n")
    assert server.inv(*words, "kill -9 $$").returncode == 137
    terminal(server, name)
    hung_up(server, name)
    left_at_once(server, name)
    assert server.inv("down", name).returncode == 0
    assert leftovers(name) == []


def terminal(server: SshServer, name: str) -> None:
    """At a terminal the command has one too, of the same size, and Ctrl-C is a key of it."""
    words = server.words("exec", "--lab", name, "host1", "sh", "-c", "stty size; exec sleep 60")
    # GNU readline, which pytest imports, sets these for children: they are not the size of this terminal.
    env = {**server.env, "LINES": "24", "COLUMNS": "80"}
    with on_terminal(words, env, size=(33, 77)) as inv:
        inv.until("33 77\r\n")
        inv.type("\x03")
        assert inv.code() == 130
        assert inv.echoes(), "the terminal is left as it was"


def hung_up(server: SshServer, name: str) -> None:
    """When the connection breaks, a command that would never end is ended."""
    inv = server.begin("exec", "--lab", name, "host1", "sh", "-c", "echo begun >&2; exec sleep 4321")
    line_with(inv, "begun")
    assert until(lambda: bool(sleepers("4321")), 10)
    cut(server)
    assert inv.wait(timeout=patience(20)) == 3
    assert until(lambda: not sleepers("4321"), 20)


def left_at_once(server: SshServer, name: str) -> None:
    """A command that takes no notice of Ctrl-C does not keep anybody here, nor does it stay there."""
    inv = server.begin("exec", "--lab", name, "host1", "sh", "-c", "trap '' INT; echo begun >&2; sleep 4321")
    line_with(inv, "begun")
    inv.send_signal(signal.SIGINT)
    line_with(inv, "press Ctrl-C again to leave at once")
    inv.send_signal(signal.SIGINT)
    _, said = inv.communicate(timeout=patience(60))
    assert (inv.returncode, f"./inv status --on {server.place} shows the labs" in said) == (130, True)
    assert until(lambda: not sleepers("4321"), 20)


def sleepers(seconds: str) -> list[int]:
    return [pid for pid, words in commands().items() if words == ["sleep", seconds]]


@pytest.mark.long
def test_a_cut_connection_leaves_a_lab_that_status_finds(server: SshServer, name: str) -> None:
    inv = server.begin("up", "zone", "--name", name, "--format=json")
    line_with(inv, "create:")
    cut(server)
    document, said = inv.communicate(timeout=patience(60))
    assert (inv.returncode, json.loads(document)["error"]["exit_code"]) == (3, 3)
    assert "lost the connection during up" in said
    assert f"./inv status --on {server.place} shows" in said

    def is_up() -> bool:
        labs = json.loads(server.inv("status", "--format=json").stdout)["labs"]
        return [(lab["lab"], lab["converged"]) for lab in labs] == [(name, True)]

    assert until(is_up, 90)


@pytest.mark.deep
@pytest.mark.long
def test_a_workshop_unit_runs_on_the_server_and_the_file_is_here(
    server: SshServer, name: str, tmp_path: Path, leftovers: Leftovers
) -> None:
    started = server.inv("workshop", "start", "03", "--name", name, cwd=tmp_path)
    assert started.returncode == 0, started.stderr
    mine = tmp_path / "qp-scaling.yml"
    assert "ecmp: e-ecmp" in mine.read_text()
    mine.write_text(mine.read_text().replace("e-ecmp", "spray"))
    asked = server.inv("workshop", "start", "03", cwd=tmp_path)
    assert (asked.returncode, "qp-scaling.yml has changed" in asked.stderr) == (2, True), asked.stderr
    again = server.inv("workshop", "start", "03", "--yes", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "spray" in server.inv("hashing", "--lab", name).stdout
    assert "spray" in mine.read_text()
    assert server.inv("workshop", "stop").returncode == 0
    assert not leftovers(name)


@pytest.mark.deep
@pytest.mark.parametrize("number", [signal.SIGINT, long(signal.SIGTERM)])  # without a place: test_pool.py
def test_a_signal_in_the_middle_of_up_leaves_nothing(
    server: SshServer, name: str, leftovers: Leftovers, number: signal.Signals
) -> None:
    inv = server.begin("up", "zone", "--name", name)
    line_with(inv, "create:")
    inv.send_signal(number)
    _, said = inv.communicate(timeout=patience(60))
    assert inv.returncode == 128 + number
    assert number == signal.SIGTERM or "./inv was interrupted" in said, said
    assert leftovers(name) == []


@pytest.mark.deep
def test_files_go_there_and_come_back_under_the_names_typed_and_nothing_is_left(
    server: SshServer, tmp_path: Path
) -> None:
    spot = tmp_path / "sub"
    spot.mkdir()
    (tmp_path / "my fabric.yml").write_text("name: mine\nracks: 1\nctsw: 1\n")
    done = server.inv("render", "../my fabric.yml", "--out", "../o ut/x", cwd=spot)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "wrote ../o ut/x/mine.clab.yml, with the files that it binds beside it\n"
    assert (tmp_path / "o ut/x/mine.clab.yml").exists()
    assert os.access(tmp_path / "o ut/x/rtsw1/start.sh", os.R_OK)
    (tmp_path / "wrong.yml").write_text("name: wrong\nracks: none\nctsw: 1\n")
    wrong = server.inv("up", "../wrong.yml", "--dry-run", cwd=spot)
    assert (wrong.returncode, wrong.stderr.startswith("../wrong.yml:2  racks: none ")) == (2, True), wrong.stderr
    assert until(lambda: not list(server.brought().parent.glob("s*")))


@pytest.mark.deep
def test_a_prediction_takes_its_files_along_and_brings_back_what_it_wrote(server: SshServer, tmp_path: Path) -> None:
    (tmp_path / "small.yml").write_text("name: small\nracks: 2\nctsw: 2\n")
    (tmp_path / "plan.yml").write_text("matrix: more/m.csv\nqps: 4\n")
    (tmp_path / "more").mkdir()
    (tmp_path / "more/m.csv").write_text("src,dst,bytes\nhost1,host4,1M\n")
    words = ["small.yml", "--workload", "plan.yml", "--csv", "links.csv", "--heatmap", "load.svg"]
    done = server.inv("predict", *words, "--format", "json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["workload"]["flows"] == 8
    assert (tmp_path / "links.csv").read_text().startswith("port,to,")
    assert "RTSW to CTSW" in (tmp_path / "load.svg").read_text()
