"""Nodes of an imported topology have their own view of all files: nothing that one does changes this machine.

Devices that their commands create: what the kernel does not have is named, before anything starts if it can.
"""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from heddle.base.mounts import mount_points
from heddle.base.problems import InputError, MachineError
from heddle.kernel.devicetypes import created, missing
from heddle.lab import lifecycle as life
from heddle.lab.imported.imported import import_topology
from heddle.runtimes.netns_space import why_read_only
from tests.listener import Listener
from tests.marks import deep

ROOT = Path(__file__).resolve().parents[2]
# Where programs of nodes write. Each directory gets a file, each file a line, from a host and from a router. A machine
# whose init has not run has no /run/lock.
DIRECTORIES = (
    "/", "/dev", "/dev/shm", "/etc", "/etc/frr", "/home", "/opt", "/root", "/run", "/srv", "/tmp", "/usr",
    "/usr/local/bin", "/var", "/var/lib", "/var/log", "/var/run", "/var/tmp",
    *(each for each in ("/run/lock",) if Path(each).is_dir()),
)  # fmt: skip
FILES = ("/etc/hosts", "/etc/passwd", "/etc/group", "/etc/profile")
TOPOLOGY = """name: ownfiles
topology:
  defaults: {kind: linux}
  nodes:
    r1:
      binds: ["daemons:/etc/frr/daemons", "conf:/conf", "setup.sh:/setup.sh", "setup.sh:/opt/no/such/setup.sh:ro"]
      exec: [chmod 755 /setup.sh, /setup.sh, sh /opt/no/such/setup.sh]
    h1: {binds: ["setup.sh:/mnt/setup.sh"], exec: [sh /mnt/setup.sh]}
    h2:
      # The machine's own scripts of FRR, which write the files of its daemons.
      exec: ["sh -c 'sed -i s/bgpd=no/bgpd=yes/ /etc/frr/daemons && /usr/lib/frr/frrinit.sh start'"]
  links:
    - endpoints: ["r1:eth1", "h1:eth1"]
    - endpoints: ["h2:eth1", "h1:eth2"]
"""


def word(name: str) -> str:
    return f"heddle-of-{name}"


def topology(directory: Path, name: str) -> Path:
    """A topology whose nodes write to many places, with a word that has the lab's name."""
    (directory / "daemons").write_text("zebra=yes\n")
    (directory / "conf").mkdir()
    (directory / "conf/kept").write_text("kept\n")
    writes = [f"echo {word(name)} > {each}/{word(name)}" for each in DIRECTORIES]
    writes += [f"echo {word(name)} >> {each}" for each in FILES]
    writes += ["rm -f /etc/motd /etc/issue", "[ ! -d /conf ] || echo changed > /conf/kept", "chmod 700 /usr/bin/env"]
    (directory / "setup.sh").write_text("#!/bin/sh\nset -e\n" + "\n".join(writes) + "\n")
    path = directory / "ownfiles.clab.yml"
    path.write_text(TOPOLOGY)
    return path


def machine(name: str) -> dict[str, object]:
    """What the script would change."""
    spots = [Path(each, word(name)) for each in DIRECTORIES]
    modes = {each: Path(each).stat().st_mode for each in ("/usr/bin/env", "/etc/hosts")}
    texts = {each: Path(each).read_text() for each in (*FILES, "/etc/frr/daemons")}
    there = [Path(each).exists() for each in ("/etc/motd", "/etc/issue", "/setup.sh", "/opt/no", "/conf")]
    return {"files": [each for each in spots if each.exists()], "modes": modes, "texts": texts, "there": there}


def test_what_nodes_write_stays_in_their_own_view(
    tmp_path: Path, name: str, leftovers: Callable[[str], list[str]]
) -> None:
    before, daemons = machine(name), Path("/etc/frr/daemons").stat().st_mtime_ns
    lab = life.up(import_topology(topology(tmp_path, name), "netns", name), source="own", timeout=20).lab
    for node in ("r1", "h1"):
        spots = [f"{each}/{word(name)}" for each in DIRECTORIES]
        assert lab.output(node, ["cat", *spots]).split() == [word(name)] * len(DIRECTORIES)
        assert lab.output(node, ["tail", "-qn1", *FILES]).split() == [word(name)] * len(FILES)
    assert lab.output("h2", ["vtysh", "-d", "bgpd", "-c", "show version"]).startswith("FRRouting")
    with pytest.raises(Exception, match=word(name)):
        lab.output("h2", ["cat", f"/etc/{word(name)}"])
    assert lab.output("r1", ["cat", "/conf/kept"]) == "changed\n"
    assert (tmp_path / "conf/kept").read_text() == "kept\n"
    assert (tmp_path / "setup.sh").stat().st_mode & 0o111 == 0
    for node in ("r1", "h1", "h2"):  # a process that comes later sees the same, and no disk
        assert "vda" not in (seen := lab.output(node, ["ls", "/dev"]).split()) and "null" in seen
    assert life.down(name)
    assert machine(name) == before
    assert Path("/etc/frr/daemons").stat().st_mtime_ns == daemons
    assert leftovers(name) == []


def test_a_command_that_fails_is_a_warning_and_the_lab_goes_on_as_in_containerlab(
    tmp_path: Path, name: str, leftovers: Callable[[str], list[str]]
) -> None:
    path = tmp_path / "fails.clab.yml"
    commands = "ip addr add 10.1.0.1/24 dev eth1, ip route add 10.9.0.0/16 via 10.99.0.1, sh -c 'echo oh; exit 7', "
    node = f"{{exec: [{commands} ip route add 10.2.0.0/16 via 10.1.0.2]}}"
    ends = "[{endpoints: ['h1:eth1', 'h2:eth1']}]"
    path.write_text(
        f"name: x\ntopology: {{defaults: {{kind: linux}}, nodes: {{h1: {node}, h2: {{}}}}, links: {ends}}}\n"
    )
    heard = Listener()
    lab = life.up(import_topology(path, "netns", name), observer=heard, source="own", timeout=20).lab
    assert "10.2.0.0/16 via 10.1.0.2" in lab.output("h1", ["ip", "route"])
    said = "\n".join(heard.warnings)
    for line in ("via 10.99.0.1 failed with exit code 2: ", "exit 7' failed with exit code 7: oh\n", "the lab goes on"):
        assert line in said
    assert life.down(name)
    assert leftovers(name) == []


@pytest.mark.parametrize("step", [deep("create"), "start", deep("converge")])
def test_nothing_stays_mounted_after_a_kill(
    step: str, tmp_path: Path, name: str, leftovers: Callable[[str], list[str]]
) -> None:
    path = topology(tmp_path, name)
    program = f"""
import os, signal, threading
from pathlib import Path
from heddle.lab import lifecycle as life
from heddle.lab.imported.imported import import_topology
from tests.listener import Listener

def fire():
    os.kill(os.getpid(), signal.SIGKILL)

lab = import_topology(Path({str(path)!r}), "netns", {name!r})
life.up(lab, observer=Listener({{{step!r}: threading.Timer(0.05, fire).start}}))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    life.down(name)
    assert leftovers(name) == []
    assert not [each for each in mount_points() if f"/{name}/" in str(each)]


@pytest.mark.deep
def test_without_overlayfs_nodes_see_files_read_only_and_new_paths_are_refused(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, leftovers: Callable[[str], list[str]]
) -> None:
    """The kernels of tests have overlayfs: only its trial is replaced."""
    monkeypatch.setattr("heddle.lab.imported.reader.why_read_only", lambda: "it has no overlayfs")
    path = topology(tmp_path, name)
    with pytest.raises(InputError) as refused:
        import_topology(path, "netns", name)
    paths = ["/conf", "/setup.sh", "/opt/no/such/setup.sh", "/mnt/setup.sh"]
    why = "which this machine does not have; nodes cannot create it, since it has no overlayfs"
    assert [problem.why for problem in refused.value.problems] == [f"needs {each}, {why}" for each in paths]
    assert all("--on vm" in problem.hint for problem in refused.value.problems)

    node = "{kind: linux, binds: ['daemons:/etc/frr/daemons']}"
    path.write_text(f"name: x\ntopology: {{nodes: {{r1: {node}}}}}\n")
    made = import_topology(path, "netns", name)
    assert "nodes can write only below /run, /dev, /tmp, /var/tmp, /etc/frr" in "\n".join(made.notes)
    lab = life.up(made, source="own", timeout=20).lab
    failed = "for each in /etc /usr /root /home /opt /var/lib; do touch $each/x 2>&1 || :; done"
    assert lab.output("r1", ["sh", "-c", failed]).count("Read-only file system") == 6
    done = "for each in /run /dev/shm /tmp /var/tmp /etc/frr; do touch $each/x && echo $each; done"
    assert len(lab.output("r1", ["sh", "-c", done]).split()) == 5
    assert not [each for each in ("/run/x", "/dev/shm/x", "/tmp/x", "/var/tmp/x", "/etc/frr/x") if Path(each).exists()]
    assert lab.output("r1", ["vtysh", "-c", "show version"]).startswith("FRRouting")
    assert life.down(name)
    assert leftovers(name) == []


def test_the_kernel_of_this_machine_can_give_nodes_their_own_view() -> None:
    assert why_read_only() == ""


MOUNTS = """
from pathlib import Path
from heddle.lab import lifecycle as life
from heddle.lab.imported.imported import import_topology

home, name = Path({home!r}), {name!r}
lab = life.up(import_topology(home / "own.clab.yml", "netns", name), source="own", timeout=20).lab
try:
    change = "cat disk/there file; echo changed | tee disk/there > file"
    print(lab.output("h1", ["sh", "-c", "cd '{home}' && " + change]))
    print(lab.output("h1", ["cat", "{home}/disk/there", "{home}/file"]), (home / "disk/there").read_text())
finally:
    life.down(name)
"""


@pytest.mark.deep
def test_other_file_systems_and_files_that_are_mounts_are_in_the_view_too(tmp_path: Path, name: str) -> None:
    """In a mount namespace of its own, so that the test mounts nothing on this machine."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "file").write_text("covered\n")
    (tmp_path / "other").write_text("on top\n")
    (tmp_path / "own.clab.yml").write_text("name: x\ntopology: {nodes: {h1: {kind: linux}}}\n")
    there = shlex.quote(str(tmp_path))
    mounts = f"cd {there} && mount -t tmpfs t disk && echo below > disk/there && mount --bind other file"
    program = [sys.executable, "-c", MOUNTS.format(home=str(tmp_path), name=name)]
    script = f'{mounts} && cd {shlex.quote(str(ROOT))} && exec "$@"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", *program], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["below", "on", "top", "changed", "changed", "below"], done.stderr
    assert ((tmp_path / "file").read_text(), (tmp_path / "other").read_text()) == ("covered\n", "on top\n")


TYPES = {
    "vlan": "link heddle0 type vlan id 5",
    "vrf": "type vrf table 10",
    "bond": "type bond",
    "vxlan": "type vxlan id 9 dstport 4789 local 127.0.0.1",
    "macvlan": "link heddle0 type macvlan",
    "bridge": "type bridge",
    "dummy": "type dummy",
    "wireguard": "type wireguard",
    "nosuchtype": "type nosuchtype",
}


def made_by_ip(options: str) -> bool:
    script = f"ip link add heddle0 type veth peer name heddle1; ip link add heddle2 {options}"
    done = subprocess.run(["unshare", "--net", "sh", "-c", script], capture_output=True, text=True, check=False)
    return done.returncode == 0


@pytest.mark.parametrize("kind", TYPES)
def test_the_probe_agrees_with_ip(kind: str) -> None:
    assert created(["ip", "link", "add", "heddle2", *TYPES[kind].split()])[0] == kind
    assert (missing(kind) == "") == made_by_ip(TYPES[kind])


def test_options_of_a_type_are_tried_too() -> None:
    options = ("bridge", "vlan_filtering", "1")
    assert created(["ip", "link", "add", "br0", "type", *options]) == options
    assert (missing(*options) == "") == made_by_ip("type " + " ".join(options))


def with_commands(directory: Path, commands: str) -> Path:
    """Two linked nodes that run these commands."""
    (path := directory / "x.clab.yml").write_text(
        "name: x\ntopology:\n  defaults: {kind: linux}\n  nodes:\n"
        f"    a: {{exec: [{commands}]}}\n    b: {{exec: [{commands}]}}\n"
        '  links:\n    - endpoints: ["a:eth1", "b:eth1"]\n'
    )
    return path


def test_it_is_named_before_anything_starts(tmp_path: Path, name: str, leftovers: Callable[[str], list[str]]) -> None:
    listener = Listener()
    path = with_commands(tmp_path, "ip link add x0 type nosuchtype id 7")
    with pytest.raises(MachineError) as caught:
        life.up(import_topology(path, "netns", name), observer=listener)
    assert str(caught.value) == (
        f"{path}:5  exec: ip link add x0 type nosuchtype id 7 is not possible here: this kernel has no nosuchtype; "
        "nodes: a, b\n"
        f"{' ' * len(str(path))}    hint: run it with --on vm: that kernel has it (docs/kernels.md)"
    )
    assert "create" not in listener.begun
    assert leftovers(name) == []


@pytest.mark.deep
def test_inside_a_shell_it_is_a_warning_and_the_reason_if_it_fails(tmp_path: Path, name: str) -> None:
    listener = Listener()
    path = with_commands(tmp_path, "sh -c 'ip link add x0 type nosuchtype || true'")
    life.up(import_topology(path, "netns", name), observer=listener)
    assert [line for line in listener.warnings if "nosuchtype ||" not in line] == [
        "exec: ip link add x0 type nosuchtype is not possible here: this kernel has no nosuchtype; nodes: a, b; "
        "run it with --on vm: that kernel has it (docs/kernels.md)"
    ]
    life.down(name)
    fails = with_commands(tmp_path, "sh -c 'ip link set lo up && ip link add x0 type nosuchtype'")
    reason = r"Unknown device type\.: this kernel has no nosuchtype\n +hint: run it with --on vm"
    life.up(import_topology(fails, "netns", name), observer=listener)
    assert re.search(reason, "\n".join(listener.warnings))
    life.down(name)
