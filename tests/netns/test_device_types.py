"""Devices that a topology's commands create: what the kernel does not have is named, before anything starts if it can.

Which types this kernel has is asked of `ip` itself.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from heddle.base.problems import MachineError
from heddle.kernel.devicetypes import created, missing
from heddle.lab import lifecycle as life
from heddle.lab.imported.imported import import_topology
from tests.listener import Listener

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


def topology(directory: Path, commands: str) -> Path:
    (path := directory / "x.clab.yml").write_text(
        "name: x\ntopology:\n  defaults: {kind: linux}\n  nodes:\n"
        f"    a: {{exec: [{commands}]}}\n    b: {{exec: [{commands}]}}\n"
        '  links:\n    - endpoints: ["a:eth1", "b:eth1"]\n'
    )
    return path


def test_it_is_named_before_anything_starts(tmp_path: Path, name: str, leftovers: Callable[[str], list[str]]) -> None:
    listener = Listener()
    path = topology(tmp_path, "ip link add x0 type nosuchtype id 7")
    with pytest.raises(MachineError) as caught:
        life.up(import_topology(path, "netns", name), observer=listener)
    assert str(caught.value) == (
        f"{path}:5  exec: ip link add x0 type nosuchtype id 7 is not possible here: this kernel has no nosuchtype; "
        "nodes: a, b\n"
        f"{' ' * len(str(path))}    hint: run it with --place vm: that kernel has it (docs/kernels.md)"
    )
    assert "create" not in listener.begun
    assert leftovers(name) == []


def test_inside_a_shell_it_is_a_warning_and_the_reason_if_it_fails(tmp_path: Path, name: str) -> None:
    listener = Listener()
    path = topology(tmp_path, "sh -c 'ip link add x0 type nosuchtype || true'")
    life.up(import_topology(path, "netns", name), observer=listener)
    assert [line for line in listener.warnings if "nosuchtype ||" not in line] == [
        "exec: ip link add x0 type nosuchtype is not possible here: this kernel has no nosuchtype; nodes: a, b; "
        "run it with --place vm: that kernel has it (docs/kernels.md)"
    ]
    life.down(name)
    fails = topology(tmp_path, "sh -c 'ip link set lo up && ip link add x0 type nosuchtype'")
    reason = r"Unknown device type\.: this kernel has no nosuchtype\n +hint: run it with --place vm"
    life.up(import_topology(fails, "netns", name), observer=listener)
    assert re.search(reason, "\n".join(listener.warnings))
    life.down(name)
