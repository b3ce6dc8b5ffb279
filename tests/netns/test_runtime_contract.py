"""The promises of `Runtime`, method by method, for every runtime in RUNTIMES and for one that only tests have.

A new runtime is tested by its line in heddle/runtimes/registry.py. Where a machine cannot run one, its tests are
skipped with the reason that its `prepare` gives. tests/clab has what exists in containers only.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from heddle.base import state
from heddle.base.events import Silent
from heddle.base.problems import InputError, MachineError
from heddle.base.process import Journal, end_all
from heddle.fabric.fabricfile import load_fabric
from heddle.kernel.namespace import NETNS_DIR, THIS_NAMESPACE, NodeHandle
from heddle.lab import lifecycle as life
from heddle.lab.imported.imported import import_topology
from heddle.lab.lab import Lab
from heddle.lab.opening import blueprint_from, open_lab
from heddle.lab.status import status
from heddle.lab.upscript import script_of
from heddle.render.dialects import RenderOptions
from heddle.render.render import DEFAULT
from heddle.runtimes.netns_topology import read_topology
from heddle.runtimes.registry import RUNTIMES, Runtime, get_runtime
from heddle.spec.shapes.clos import ClosSpec
from tests import processnodes
from tests.conftest import Up
from tests.listener import Listener
from tests.machine import child, until
from tests.marks import deep

pytestmark = pytest.mark.containers
MORE_RUNTIMES = {processnodes.NAME: processnodes.ProcessRuntime}  # tests/conftest.py registers it for this module
ROOT = Path(__file__).parents[2]
HALFWAY = "halfway"
Leftovers = Callable[[str], list[str]]


@pytest.fixture(scope="module")
def lab(up: Up, lab_name: Callable[[], str]) -> Iterator[Lab]:
    """The preset tiny in the runtime under test: 2 RTSW, 2 CTSW, 4 hosts. Tests leave it unchanged."""
    name = lab_name()
    yield up(name).lab
    life.down(name, force=True)


@pytest.fixture
def small(up: Up, name: str) -> Lab:
    """One RTSW, one CTSW and one host, for tests that damage it."""
    return up(name, "racks=1", "ctsw=1", "hosts_per_rack=1").lab


def space(handle: NodeHandle) -> tuple[int, int]:
    """The identity of a node's network namespace."""
    found = handle.netns.stat()
    return found.st_dev, found.st_ino


def processes_in(handle: NodeHandle) -> list[int]:
    """Processes in the node's network namespace."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            there = (entry / "ns/net").stat() if entry.name.isdigit() else None
        except OSError:
            continue
        if there is not None and (there.st_dev, there.st_ino) == space(handle):
            found.append(int(entry.name))
    return found


def lose(handle: NodeHandle) -> None:
    """End a node by hand, as no command of Heddle does: all its processes, then the name of its namespace."""
    for pid in processes_in(handle):
        with suppress(ProcessLookupError):  # it may end with one of the others
            end_all([os.pidfd_open(pid)], 0.0)
    if handle.netns.is_relative_to(NETNS_DIR) and handle.netns.exists():
        subprocess.run(["umount", str(handle.netns)], check=False, capture_output=True)
        handle.netns.unlink()


def test_prepare_refuses_options_that_no_lab_can_have(runtime: str) -> None:
    with pytest.raises(InputError, match="--dialect c9s"):
        get_runtime(runtime).prepare(load_fabric("tiny").fabric, RenderOptions(dialect="c9s"), Silent())


def test_up_again_is_a_no_op_with_any_management_network_where_nodes_have_none(lab: Lab, up: Up) -> None:
    heard = Listener()
    again = up(lab.name, observer=heard)
    assert (again.created, again.converged) == (False, True)
    assert any("already" in text for text in heard.said)
    bare = RenderOptions(mgmt="none")
    if lab.runtime.daemons_here:
        assert not up(lab.name, options=bare).created
        return
    with pytest.raises(InputError, match="mgmt: none was requested, but the running lab uses own"):
        up(lab.name, options=bare)


def test_exists_is_true_from_create_to_destroy(lab: Lab, name: str) -> None:
    assert get_runtime(lab.runtime.name).name == lab.runtime.name, "its name is its key"
    assert lab.runtime.exists(lab.name) and not lab.runtime.exists(name)
    assert lab.runtime.name_conflict(lab.name) is None and lab.runtime.name_conflict(name) is None
    others = [each for each in RUNTIMES if each != lab.runtime.name]
    assert not any(get_runtime(each).exists(lab.name) for each in others)


def test_write_script_runs_nothing(runtime: str, name: str, leftovers: Leftovers) -> None:
    script = script_of(load_fabric("tiny", name=name), runtime)
    assert name in script and "rtsw1" in script
    assert not get_runtime(runtime).exists(name) and leftovers(name) == []


def test_create_makes_every_link_with_its_names_macs_and_mtu_and_sets_the_sysctls(lab: Lab) -> None:
    topology = read_topology(lab.topology)
    found = {name: json.loads(lab.output(name, ["ip", "-j", "link", "show"])) for name in topology.nodes}
    ports = {(name, port["ifname"]): port for name, rows in found.items() for port in rows}
    for link in topology.links:
        for end in (link.a, link.b):
            port = ports[end.node, end.interface]
            assert (port["mtu"], port["operstate"]) == (link.mtu, "UP")
            assert end.mac is None or port["address"] == end.mac
    wired = {(end.node, end.interface) for link in topology.links for end in (link.a, link.b)}
    assert {key for key in ports if key[1] not in ("lo", "eth0")} == wired, "eth0 is a management network's"
    for node in topology.nodes.values():
        files = [f"/proc/sys/{key.replace('.', '/')}" for key in node.sysctls]
        values = lab.output(node.name, ["cat", *files]).split("\n")[:-1] if files else []
        assert dict(zip(node.sysctls, values, strict=True)) == node.sysctls


def test_start_runs_the_daemons_and_twice_starts_nothing_twice(lab: Lab) -> None:
    for switch in lab.fabric.switches:
        found = lab.output(switch.name, ["vtysh", "-c", "show running-config"])
        assert f"hostname {switch.name}" in found and f"router bgp {switch.asn}" in found
        log = lab.output(switch.name, ["sh", "-c", "cat /var/log/frr/*.log"])
        assert "No such command" not in log and "Unknown command" not in log
    pids = lab.output("rtsw1", ["sh", "-c", "cat /run/frr/*.pid"])
    lab.output("rtsw1", ["sh", "/etc/frr/start.sh"])
    assert lab.output("rtsw1", ["sh", "-c", "cat /run/frr/*.pid"]) == pids


def test_nodes_are_network_namespaces_in_the_topologys_order(lab: Lab, name: str) -> None:
    handles = lab.runtime.nodes(lab.name, lab.topology)
    assert list(handles) == list(read_topology(lab.topology).nodes)
    assert all(handle.name == node for node, handle in handles.items())
    here = THIS_NAMESPACE.stat()
    spaces = {space(handle) for handle in handles.values()}
    assert len(spaces) == len(handles) and (here.st_dev, here.st_ino) not in spaces
    stopped = lab.runtime.nodes(name, lab.topology)
    assert list(stopped) == list(handles), "also of a lab that is not running"
    assert not any(handle.netns.exists() for handle in stopped.values())


def test_find_gives_a_nodes_own_file_on_this_machine(lab: Lab) -> None:
    first, second = (
        lab.runtime.find(lab.name, lab.topology, node, "/run/frr/zebra.vty") for node in ("rtsw1", "rtsw2")
    )
    assert first is not None and second is not None
    assert first.is_socket() and second.is_socket() and not first.samefile(second)
    assert lab.runtime.find(lab.name, lab.topology, "rtsw1", "/run/frr/nothing.vty") is None


def test_exec_gives_the_commands_exit_code(lab: Lab) -> None:
    assert lab.exec("host1", ["sh", "-c", "exit 7"]) == 7
    assert lab.exec("host1", ["no-such-command"]) == 127
    assert lab.exec("host1", ["sh", "-c", "kill -9 $$"]) == 128 + signal.SIGKILL
    assert lab.exec("rtsw1", ["test", "-e", "/sys/class/net/eth4"]) == 0
    assert lab.exec("host1", ["test", "-e", "/sys/class/net/eth2"]) == 1
    with pytest.raises(InputError, match="did you mean host1"):
        lab.exec("hots1", ["true"])


def test_command_gives_argv_and_streams_unchanged_and_has_the_nodes_name(lab: Lab) -> None:
    words = ["two words", "$HOME", 'a "quote"', "", "*"]
    argv = lab.runtime.command(lab.name, lab.topology, "host1", ["printf", r"%s\n", *words])
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    assert (done.stdout.split("\n"), done.stderr) == ([*words, ""], "")
    assert lab.output("host2", ["hostname"]) == "host2\n"


def test_output_is_stdout_only_and_a_failure_gives_stderr(lab: Lab) -> None:
    assert lab.output("host1", ["sh", "-c", "echo yes; echo no >&2"]) == "yes\n"
    with pytest.raises(MachineError, match=r"host1: sh -c .* failed with exit code 3: oh"):
        lab.output("host1", ["sh", "-c", "echo oh >&2; exit 3"])


def test_output_waits_for_a_limited_time(lab: Lab) -> None:
    with pytest.raises(MachineError, match=r"did not end within 0\.5 s"):
        lab.runtime.output(lab.name, lab.topology, "host1", ["sleep", "5"], timeout=0.5)


def test_a_node_that_a_topology_does_not_have_is_named(lab: Lab) -> None:
    for use in (lab.runtime.command, lab.runtime.exec, lab.runtime.output):
        with pytest.raises(MachineError, match="hots1 is not a node of"):
            use(lab.name, lab.topology, "hots1", ["true"])


def test_a_lost_node_is_named_and_the_rest_goes_down(small: Lab, leftovers: Leftovers) -> None:
    runtime, at = small.runtime, (small.name, small.topology)
    assert runtime.missing_nodes(*at) == []
    lose(small.handle("rtsw1"))
    until(lambda: runtime.missing_nodes(*at))
    (lost,) = runtime.missing_nodes(*at)
    assert (lost.where, bool(lost.why)) == ("rtsw1", True) and f"down {small.name}" in lost.hint
    assert [str(each) for each in small.missing_nodes()] == [str(lost)]
    for use in (runtime.command, runtime.exec, runtime.output):
        with pytest.raises(MachineError, match=r"rtsw1 .*is (missing|not running)"):
            use(*at, "rtsw1", ["true"])
    assert runtime.exec(*at, "ctsw1", ["true"]) == 0, "the others can be entered"
    assert list(runtime.nodes(*at)) == [node.name for node in small.fabric.nodes]
    assert status(small.name)[0].state == "broken"
    assert runtime.exists(small.name) and runtime.destroy(small.name, Silent()) > 0
    assert not runtime.exists(small.name)
    assert runtime.destroy(small.name, Silent()) == 0, "the second time there is nothing"
    assert {each.where for each in runtime.missing_nodes(*at)} == {node.name for node in small.fabric.nodes}
    life.down(small.name)
    assert leftovers(small.name) == []


STUBBORN = "trap '' TERM; echo here; while :; do sleep 9; done"


def test_destroy_ends_also_processes_that_ignore_a_signal(small: Lab, leftovers: Leftovers) -> None:
    argv = small.runtime.command(small.name, small.topology, "host1", ["sh", "-c", STUBBORN])
    with child(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"here\n"
        assert life.down(small.name)
        assert process.wait(10) != 0
    assert leftovers(small.name) == []


def test_a_lab_that_was_created_and_not_started_is_destroyed(runtime: str, name: str, leftovers: Leftovers) -> None:
    engine, heard = get_runtime(runtime), Listener()
    blueprint = blueprint_from(ClosSpec(name=name, racks=1, ctsw=1, hosts_per_rack=1))
    options = engine.prepare(blueprint.fabric, DEFAULT, Silent())
    topology = blueprint.write(state.lab_dir(name) / "topology", options)
    engine.create(name, topology, Journal(), heard)
    assert heard.begun == ["create"] and engine.exists(name) and engine.missing_nodes(name, topology) == []
    assert life.down(name)
    assert leftovers(name) == []


def test_a_start_script_that_fails_is_named_and_leaves_nothing(name: str, leftovers: Leftovers, up: Up) -> None:
    def spoil() -> None:
        (state.lab_dir(name) / "topology/ctsw2/start.sh").write_text("echo no such thing >&2; exit 5\n")

    with pytest.raises(MachineError, match=r"ctsw2  sh /etc/frr/start.sh failed with exit code 5: no such thing"):
        up(name, observer=Listener({"create": spoil}))
    assert leftovers(name) == []


def test_names_with_the_most_letters(runtime: str, tmp_path: Path, name: str, leftovers: Leftovers) -> None:
    """A lab's name has 12 letters at most, a port's 15; a node has a host's name (63, RFC 1123)."""
    node, port = "n" * 62, "p" * 15
    assert len(name) == 12
    path = tmp_path / "long.clab.yml"
    path.write_text(
        f"name: {name}\ntopology:\n  defaults: {{kind: linux, network-mode: none}}\n"
        f"  nodes:\n    {node}1: {{}}\n    {node}2: {{}}\n"
        f'  links:\n    - endpoints: ["{node}1:{port}", "{node}2:{port}"]\n'
    )
    lab = life.up(import_topology(path, runtime, name), runtime=runtime).lab
    assert lab.exec(f"{node}1", ["test", "-e", f"/sys/class/net/{port}"]) == 0
    assert lab.output(f"{node}2", ["hostname"]) == f"{node}2\n"
    assert life.down(name)
    assert leftovers(name) == []


def test_a_second_lab_runs_beside_the_first_and_goes_alone(lab: Lab, name: str, leftovers: Leftovers, up: Up) -> None:
    second = up(name)
    assert second.created and not {space(handle) for handle in second.lab.handles().values()} & {
        space(handle) for handle in lab.handles().values()
    }
    with pytest.raises(InputError, match="several labs"):
        open_lab()
    argv = lab.runtime.command(lab.name, lab.topology, "host1", ["sh", "-c", "echo here; exec sleep 99"])
    with child(argv, stdout=subprocess.PIPE) as bystander:
        assert bystander.stdout is not None and bystander.stdout.readline() == b"here\n"
        assert life.down(name)
        assert leftovers(name) == [], "processes of another lab must not keep the namespaces of this one"
        assert bystander.poll() is None
        lab.output("host1", ["pkill", "-f", "^sleep 99$"])
        bystander.wait(10)
    lab.wait(timeout=1)


@pytest.mark.parametrize("step", [HALFWAY, *map(deep, ("create", "queues, hashing, counters", "converge"))])
def test_ctrl_c_at_a_step_of_up_leaves_nothing(step: str, name: str, leftovers: Leftovers, runtime: str) -> None:
    if step != HALFWAY and runtime != "netns":
        pytest.skip("these steps are the same in all runtimes")
    process = up_in_a_process(name, step, "SIGINT", runtime)
    assert process.wait(60) == -signal.SIGINT or process.returncode == 1
    assert leftovers(name) == []


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
    if runtime != "containerlab":  # which takes long
        assert up_in_a_process(name, HALFWAY, "SIGKILL", runtime).wait(60) == -signal.SIGKILL
        assert up(name).created


def up_in_a_process(name: str, step: str, sign: str, runtime: str) -> subprocess.Popen[bytes]:
    """`up` of preset tiny, in a process (and a process group) that gets a signal as a step begins.

    HALFWAY is while nodes are created, once a first one exists.
    """
    program = f"""
import os, signal, threading, time
from heddle.base import state
from heddle.lab import lifecycle as lab
from heddle.fabric.fabricfile import load_fabric
from heddle.runtimes.registry import RUNTIMES, get_runtime
from tests import processnodes
from tests.listener import Listener

RUNTIMES.core[processnodes.NAME] = processnodes.ProcessRuntime
topology = state.lab_dir({name!r}) / "topology/{name}.clab.yml"

def nodes():
    return get_runtime({runtime!r}).nodes({name!r}, topology).values()

def fire():
    while {step == HALFWAY} and not any(node.netns.exists() for node in nodes()):
        time.sleep(0.005)
    os.kill(0 if {sign!r} == "SIGINT" else os.getpid(), signal.{sign})

def begin():
    threading.Thread(target=fire).start() if {step == HALFWAY} else fire()

at = {{{("create" if step == HALFWAY else step)!r}: begin}}
lab.up(load_fabric("tiny", name={name!r}), runtime={runtime!r}, observer=Listener(at))
"""
    return subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stderr=subprocess.DEVNULL, start_new_session=True
    )


def test_every_method_of_the_protocol_is_there(runtime: str) -> None:
    wanted = {each for each in (*vars(Runtime), *Runtime.__annotations__) if not each.startswith("_")}
    assert wanted <= set(dir(get_runtime(runtime)))
