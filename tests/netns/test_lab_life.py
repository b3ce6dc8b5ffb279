"""The life of a lab under a user's actions. test_runtime_contract.py has what a runtime itself promises."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from heddle.base import owners, state
from heddle.base.problems import CheckError, InputError
from heddle.cli.console import Console
from heddle.cli.exec_verb import run_inside
from heddle.lab import health
from heddle.lab import lifecycle as life
from heddle.lab.lab import Lab
from heddle.lab.opening import open_lab
from heddle.lab.status import status
from heddle.runtimes import enter
from tests.conftest import Up
from tests.listener import Listener
from tests.machine import child, until
from tests.netns.collectives import ran
from tests.netns.test_pfc_trouble import found, kill_both, pids

ROOT = Path(__file__).parents[2]
Leftovers = Callable[[str], list[str]]


def test_up_with_another_fabric_names_what_differs(tiny: Lab, up: Up) -> None:
    with pytest.raises(InputError) as caught:
        up(tiny.name, "link.mtu=5000", "link.host=50mbit")
    said = str(caught.value)
    assert "link.mtu: 5000 was requested, but the running lab uses 4200" in said
    assert "link.host: 50mbit was requested, but the running lab uses 100mbit" in said
    assert f"./inv down {tiny.name}" in said


@pytest.mark.containers
def test_status_counts_what_runs(tiny: Lab) -> None:
    (row,) = [row for row in status() if row.lab == tiny.name]
    assert (row.state, row.converged, row.switches, row.hosts, row.links) == ("up", True, 4, 4, 8)
    assert (row.bgp.established, row.bgp.expected) == (4, 4)
    assert json.loads(json.dumps(row.to_json()))["bgp"] == {"established": 4, "expected": 4}


def test_the_only_lab_is_taken_when_none_is_named(tiny: Lab) -> None:
    assert open_lab().name == tiny.name
    with pytest.raises(InputError, match="is not running"):
        open_lab("nosuch")


@pytest.mark.deep
def test_several_nics_and_odd_numbers_work(fabric_lab: Callable[..., Lab]) -> None:
    lab = fabric_lab(racks=3, ctsw=5, hosts_per_rack=3, nics_per_host=2)
    routes = lab.output("host1", ["ip", "route", "show", "10.0.0.0/8"])
    assert routes.count("nexthop") == 2
    second = lab.fabric.by_name["host1"].ports[1]
    assert second.address is not None
    way = lab.output("host1", ["ip", "route", "get", "10.0.2.1", "from", str(second.address.ip)])
    assert f"dev {second.name}" in way


@pytest.mark.deep
def test_no_convergence_leaves_the_lab_and_says_why_but_nothing_with_rollback(
    name: str, leftovers: Leftovers, up: Up
) -> None:
    with pytest.raises(CheckError) as caught:
        up(name, observer=Listener({"create": without_a_session(name)}), timeout=3)
    text = str(caught.value)
    assert "rtsw1  10.0.1.0/24 has no next hop over eth2 to ctsw2 (BGP: no neighbour)" in text
    assert f"./inv down {name} removes it" in text
    assert open_lab(name).daemons.sessions("rtsw1") == {"eth1": "Established"}
    assert life.down(name)
    with pytest.raises(CheckError):
        up(name, observer=Listener({"create": without_a_session(name)}), timeout=1, rollback=True)
    assert leftovers(name) == []


def test_up_does_not_touch_a_foreign_lab_of_that_name(name: str, leftovers: Leftovers, up: Up) -> None:
    subprocess.run(["ip", "netns", "add", f"heddle-{name}-rtsw1"], check=True)
    with pytest.raises(InputError, match=r"this user.s Heddle has no record of it"):
        up(name)
    assert leftovers(name) == [f"namespace heddle-{name}-rtsw1"]


STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(99)"


@pytest.mark.deep
@pytest.mark.containers
def test_a_lab_survives_what_is_killed_and_goes_down_without_its_record(
    name: str, up: Up, leftovers: Leftovers
) -> None:
    """zebra and, in containers, both processes of PFC are killed; then a process ignores SIGTERM as the lab goes."""
    lab = up(name).lab
    if lab.runtime.name != "netns":  # test_pfc_trouble.py has namespaces
        agent, keeper = pids(lab)
        os.kill(agent, signal.SIGKILL)
        until(lambda: found(lab)[0] not in (agent, None))
        os.kill(keeper, signal.SIGKILL)
        until(lambda: found(lab)[1] not in (keeper, None))
        kill_both(lab)
        ran(lab, sizes=(1 << 16,), iters=1)
        pids(lab)

    lab.output("rtsw1", ["sh", "-c", "kill -9 $(cat /run/frr/zebra.pid)"])
    until(lambda: status(name)[0].faults == ("rtsw1  zebra does not answer",))
    assert not status(name)[0].converged
    with pytest.raises(CheckError, match=r"rtsw1  zebra does not answer\n.*\./inv up --repair"):
        up(name)
    assert lab.exec("rtsw1", ["sh", "/etc/frr/start.sh"]) == 0
    until(lambda: health.faults(lab) == [])

    argv = ["nsenter", f"--net={lab.handle('host1').netns}", sys.executable, "-c", STUBBORN]
    with child(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        subprocess.run(["rm", "-rf", str(state.lab_dir(name))], check=True)
        with pytest.raises(InputError, match=f"down {name}"):
            up(name)
        assert life.down(name)
        assert process.wait(5) == -signal.SIGKILL
    assert leftovers(name) == []


def test_two_heddles_do_not_work_on_one_lab(name: str) -> None:
    with owners.lock(name), pytest.raises(InputError, match=f"lab {name} is being worked on by another Heddle"):
        life.down(name)


@pytest.mark.deep
def test_a_directory_that_is_not_there_is_made_for_the_node_only(tiny: Lab, tmp_path: Path) -> None:
    (tmp_path / "note").write_text("inside")
    order = job(tiny, ["cat", "/run/heddletest/note"], [[str(tmp_path), "/run/heddletest", False]])
    argv = [sys.executable, "-I", "-S", enter.__file__, "one", json.dumps(order)]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "inside"
    assert not Path("/run/heddletest").exists()


VANISHED = """
import os, sys
from heddle.runtimes import enter
before = os.listdir
enter.os.listdir = lambda path: [*before(path), "heddle-has-just-gone"]
enter.check(enter.libc.unshare(enter.CLONE_NEWNS), "unshare")
enter.mount("none", "/", flags=enter.MS_REC | enter.MS_SLAVE)
enter.replace_run()
print(os.path.isdir("/run/netns"))
"""


def test_an_entry_of_run_that_goes_while_a_node_is_entered_is_no_error() -> None:
    done = subprocess.run([sys.executable, "-c", VANISHED], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("True\n", "")


def job(lab: Lab, argv: list[str], mounts: list[list[object]] | None = None) -> dict[str, object]:
    """What enter.py takes, for host1."""
    return {"node": "host1", "netns": str(lab.handle("host1").netns), "mounts": mounts or [], "commands": [argv]}


def topology_dir(name: str) -> Path:
    return state.lab_dir(name) / "topology"


def without_a_session(name: str) -> Callable[[], None]:
    """Take rtsw1's session over eth2 out of the rendered configuration."""

    def edit() -> None:
        path = topology_dir(name) / "rtsw1/frr.conf"
        path.write_text(path.read_text().replace(" neighbor eth2 interface peer-group FABRIC\n", ""))

    return edit


def test_exec_says_where_a_command_that_is_missing_comes_from(
    tiny: Lab, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Console()
    run_inside(out, tiny.name, "host1", ["no-such-command"])
    assert out.exit_code == 127
    here = tiny.runtime.daemons_here
    said = "install no-such-command on this machine" if here else "does not contain no-such-command"
    assert said in capfd.readouterr().err
    run_inside(out, tiny.name, "host1", ["sh", "-c", "exit 127"])
    assert capfd.readouterr().err == "", "a command's own exit code"
    if here:
        monkeypatch.setenv("PATH", "/nowhere")
        monkeypatch.setattr("heddle.cli.exec_verb.find_program", lambda *_: None)
        wanted = "ping"  # which does not start: nothing is found
        run_inside(out, tiny.name, "host1", [wanted])
        said = "hint: run apt-get install iputils-ping to get ping: nodes use the programs of this machine"
        assert said in capfd.readouterr().err
