"""The life of a lab under a user's actions: up twice, kill -9, Ctrl-C, down twice, two labs at once."""

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
from heddle.base.problems import CheckError, InputError, MachineError
from heddle.cli.console import Console
from heddle.cli.exec_verb import run_inside
from heddle.lab import health
from heddle.lab import lifecycle as life
from heddle.lab.lab import Lab
from heddle.lab.opening import open_lab
from heddle.lab.status import status
from heddle.render.dialects import RenderOptions
from heddle.runtimes import enter
from tests.conftest import Up
from tests.listener import Listener
from tests.machine import child, until
from tests.marks import deep
from tests.netns.collectives import ran
from tests.netns.test_pfc_trouble import found, kill_both, pids

ROOT = Path(__file__).parents[2]
Leftovers = Callable[[str], list[str]]
HALFWAY = "halfway"


@pytest.mark.containers
def test_up_again_is_a_no_op_that_says_so(tiny: Lab, up: Up) -> None:
    heard = Listener()
    again = up(tiny.name, observer=heard)
    assert (again.created, again.converged) == (False, True)
    assert any("already" in text for text in heard.said)


def test_up_with_another_fabric_names_what_differs(tiny: Lab, up: Up) -> None:
    with pytest.raises(InputError) as caught:
        up(tiny.name, "link.mtu=5000", "link.host=50mbit")
    said = str(caught.value)
    assert "link.mtu: 5000 was requested, but the running lab uses 4200" in said
    assert "link.host: 50mbit was requested, but the running lab uses 100mbit" in said
    assert f"./inv down {tiny.name}" in said


@pytest.mark.containers
def test_a_management_network_makes_another_lab_of_containers_only(tiny: Lab, up: Up) -> None:
    bare = RenderOptions(mgmt="none")
    if tiny.runtime.name == "netns":  # namespaces have none either way
        assert not up(tiny.name, options=bare).created
        return
    with pytest.raises(InputError, match="mgmt: none was requested, but the running lab uses own"):
        up(tiny.name, options=bare)


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


@pytest.mark.containers
def test_frr_has_the_whole_configuration_and_a_start_script_twice_starts_nothing_twice(tiny: Lab) -> None:
    for switch in tiny.fabric.switches:
        found = tiny.output(switch.name, ["vtysh", "-c", "show running-config"])
        assert f"hostname {switch.name}" in found and f"router bgp {switch.asn}" in found
        log = tiny.output(switch.name, ["sh", "-c", "cat /var/log/frr/*.log"])
        assert "No such command" not in log and "Unknown command" not in log
    pids = tiny.output("rtsw1", ["sh", "-c", "cat /run/frr/*.pid"])
    tiny.output("rtsw1", ["sh", "/etc/frr/start.sh"])
    assert tiny.output("rtsw1", ["sh", "-c", "cat /run/frr/*.pid"]) == pids


@pytest.mark.containers
def test_exec_gives_the_commands_exit_code(tiny: Lab) -> None:
    assert tiny.exec("host1", ["sh", "-c", "exit 7"]) == 7
    assert tiny.exec("host1", ["no-such-command"]) == 127
    assert tiny.exec("rtsw1", ["test", "-e", "/sys/class/net/eth4"]) == 0
    assert tiny.exec("host1", ["test", "-e", "/sys/class/net/eth2"]) == 1
    with pytest.raises(InputError, match="did you mean host1"):
        tiny.exec("hots1", ["true"])
    with pytest.raises(MachineError, match="exit code 3: oh"):
        tiny.output("host1", ["sh", "-c", "echo oh >&2; exit 3"])


def test_hosts_reach_each_other_over_the_fabric(tiny: Lab) -> None:
    first, last = tiny.fabric.hosts[0], tiny.fabric.hosts[-1]
    assert last.ports[0].address is not None
    there = str(last.ports[0].address.ip)
    code = f"import socket; s = socket.create_server(('{there}', 9)); s.accept()[0].sendall(b'here')"
    with child(["nsenter", f"--net={tiny.handle(last.name).netns}", sys.executable, "-c", code]):
        ask = f"""
import socket, time
for _ in range(1200):
    try:
        print(socket.create_connection(('{there}', 9), 2).recv(9).decode()); break
    except ConnectionRefusedError:
        time.sleep(0.05)
"""
        argv = ["nsenter", f"--net={tiny.handle(first.name).netns}", sys.executable, "-c", ask]
        assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip() == "here"


def test_a_second_lab_runs_beside_the_first_and_goes_alone(tiny: Lab, name: str, leftovers: Leftovers, up: Up) -> None:
    second = up(name)
    assert second.created
    with pytest.raises(InputError, match="several labs"):
        open_lab()
    bystander = [sys.executable, "-I", "-S", enter.__file__, "one", json.dumps(job(tiny, ["sleep", "99"]))]
    with child(bystander) as process:
        until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n")
        assert life.down(name)
        assert leftovers(name) == [], "processes of another lab must not keep the namespaces of this one"
        process.kill()
    tiny.wait(timeout=1)


@pytest.mark.deep
def test_several_nics_and_odd_numbers_work(fabric_lab: Callable[..., Lab]) -> None:
    lab = fabric_lab(racks=3, ctsw=5, hosts_per_rack=3, nics_per_host=2)
    routes = lab.output("host1", ["ip", "route", "show", "10.0.0.0/8"])
    assert routes.count("nexthop") == 2
    second = lab.fabric.by_name["host1"].ports[1]
    assert second.address is not None
    way = lab.output("host1", ["ip", "route", "get", "10.0.2.1", "from", str(second.address.ip)])
    assert f"dev {second.name}" in way


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


@pytest.mark.containers
def test_a_start_script_that_fails_is_named_and_leaves_nothing(name: str, leftovers: Leftovers, up: Up) -> None:
    def spoil() -> None:
        (topology_dir(name) / "ctsw2/start.sh").write_text("echo no such thing >&2; exit 5\n")

    with pytest.raises(MachineError, match=r"ctsw2  sh /etc/frr/start.sh failed with exit code 5: no such thing"):
        up(name, observer=Listener({"create": spoil}))
    assert leftovers(name) == []


@pytest.mark.containers
@pytest.mark.parametrize("step", [HALFWAY, *map(deep, ("create", "queues, hashing, counters", "converge"))])
def test_ctrl_c_at_a_step_of_up_leaves_nothing(step: str, name: str, leftovers: Leftovers, runtime: str) -> None:
    if step != HALFWAY and runtime != "netns":
        pytest.skip("these steps are the same in containers")
    process = up_in_a_process(name, step, "SIGINT", runtime)
    assert process.wait(60) == -signal.SIGINT or process.returncode == 1
    assert leftovers(name) == []


@pytest.mark.containers
def test_a_killed_up_is_broken_and_goes_down_clean_and_another_one_just_works(
    name: str, runtime: str, leftovers: Leftovers, up: Up
) -> None:
    """tests/netns/test_killed.py kills it at every step."""
    assert up_in_a_process(name, HALFWAY, "SIGKILL", runtime).wait(60) == -signal.SIGKILL
    (row,) = status(name)
    assert row.state == "broken"
    with pytest.raises(InputError, match="down"):
        open_lab(name)
    assert life.down(name)
    assert leftovers(name) == []
    assert not life.down(name), "the second time there is nothing"
    if runtime == "netns":
        assert up_in_a_process(name, HALFWAY, "SIGKILL", runtime).wait(60) == -signal.SIGKILL
        assert up(name).created


def test_up_does_not_touch_a_foreign_lab_of_that_name(name: str, leftovers: Leftovers, up: Up) -> None:
    subprocess.run(["ip", "netns", "add", f"heddle-{name}-rtsw1"], check=True)
    with pytest.raises(InputError, match=r"this user.s Heddle has no record of it"):
        up(name)
    assert leftovers(name) == [f"namespace heddle-{name}-rtsw1"]


STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(99)"


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


def up_in_a_process(name: str, step: str, sign: str, runtime: str) -> subprocess.Popen[bytes]:
    """`up` of preset tiny, in a process (and a process group) that gets a signal as a step begins.

    HALFWAY is while daemons are started. containerlab does that as it creates nodes: there, once a first node exists.
    """
    wait = "pass"
    if step == HALFWAY:
        step = "start"
    if step == "start" and runtime == "containerlab":
        step, wait = "create", f"while not list(NETNS_DIR.glob('clab-*{name}-*')): time.sleep(0.01)"
    program = f"""
import os, signal, threading, time
from heddle.lab import lifecycle as lab
from heddle.fabric.fabricfile import load_fabric
from heddle.kernel.namespace import NETNS_DIR
from tests.listener import Listener

def fire():
    {wait}
    os.kill(0 if {sign!r} == "SIGINT" else os.getpid(), signal.{sign})

def begin():
    threading.Thread(target=fire).start() if {wait != "pass"} else fire()

lab.up(load_fabric("tiny", name={name!r}), runtime={runtime!r}, observer=Listener({{ {step!r}: begin }}))
"""
    return subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stderr=subprocess.DEVNULL, start_new_session=True
    )


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
