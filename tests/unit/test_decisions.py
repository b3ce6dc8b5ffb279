"""Which sysctls an imported configuration sets, as its files and commands say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from heddle.base.state import Record
from heddle.lab.imported.decisions import settings_of
from heddle.lab.imported.description import BindDescription, NodeDescription
from heddle.lab.imported.imported import ImportedLab, import_topology

IPV6 = "net.ipv6.conf.all.forwarding"
IPV4 = "net.ipv4.ip_forward"


def values(tmp_path: Path, *commands: str, **files: str) -> dict[str, list[str]]:
    """Sysctl -> values, of a node with these commands and files; `frr_conf` is /etc/frr/frr.conf."""
    binds = []
    for name, text in files.items():
        path = tmp_path / name
        path.write_text(text)
        target = {"frr_conf": "/etc/frr/frr.conf", "zebra_conf": "/etc/frr/zebra.conf"}.get(name, f"/{name}")
        binds.append(BindDescription(path, target))
    found = settings_of(NodeDescription("r1", "x:1", tuple(binds), commands))
    return {key: [each.value for each in settings] for key, settings in found.items()}


def test_frr_decides_forwarding_by_its_configuration(tmp_path: Path) -> None:
    assert values(tmp_path, frr_conf="hostname r1\nno ipv6 forwarding\n!\n")[IPV6] == ["0"]
    assert values(tmp_path, frr_conf="ipv6 forwarding\n")[IPV6] == ["1"]
    assert values(tmp_path, zebra_conf="no  ip forwarding \n")[IPV4] == ["0"]
    assert values(tmp_path, frr_conf="interface eth1\n no ip forwarding\n! no ipv6 forwarding\n") == {}


@pytest.mark.parametrize(
    ("command", "key", "value"),
    [
        ("sysctl -w net.ipv4.ip_forward=0", IPV4, "0"),
        ("/sbin/sysctl -qw net.ipv4.ip_forward=0 net.ipv4.tcp_ecn=1", "net.ipv4.tcp_ecn", "1"),
        ("sysctl net/ipv4/ip_forward=0", IPV4, "0"),
        ("""sh -c 'ip link set eth1 up && sysctl -w "net.ipv4.tcp_rmem=1 2	3"'""", "net.ipv4.tcp_rmem", "1 2 3"),
        ("bash -c 'if true; then sysctl -w net.ipv4.ip_forward=0; fi'", IPV4, "0"),
        ("sh -c 'echo 0 > /proc/sys/net/ipv4/ip_forward'", IPV4, "0"),
        ("vtysh -c 'conf t' -c 'no ipv6 forwarding'", IPV6, "0"),
        ("sh /setup.sh", IPV4, "0"),
        ("/setup.sh now", IPV4, "0"),
        ("sysctl -p /values", IPV4, "0"),
        ("sysctl -w net.ipv4.conf.all.forwarding=0", IPV4, "0"),
    ],
)
def test_commands_decide(command: str, key: str, value: str, tmp_path: Path) -> None:
    files = {
        "setup.sh": "#!/bin/sh\nsysctl -w net.ipv4.ip_forward=0 # no routing\n",
        "values": "# x\nnet.ipv4.ip_forward = 0\n",
    }
    assert values(tmp_path, command, **files)[key] == [value]


@pytest.mark.parametrize(
    "command",
    [
        "sysctl net.ipv4.ip_forward",
        "sysctl -w net.ipv4.ip_forward=$VALUE",
        "sysctl -w kernel.pid_max=1",
        "echo sysctl -w net.ipv4.ip_forward=0",
        "cat /setup.sh",
        "sh -c 'sysctl -w \"net.ipv4.ip_forward=0'",
        "sysctl -p /nothing",
    ],
)
def test_other_commands_decide_nothing(command: str, tmp_path: Path) -> None:
    assert values(tmp_path, command, **{"setup.sh": "sysctl -w net.ipv4.ip_forward=0\n"}) == {}


def test_both_names_of_ipv4_forwarding_are_one_setting(tmp_path: Path) -> None:
    found = values(tmp_path, "sysctl -w net.ipv4.conf.all.forwarding=0", frr_conf="ip forwarding\n")
    assert found == {IPV4: ["1", "0"], "net.ipv4.conf.all.forwarding": ["1", "0"]}


def test_a_record_keeps_what_was_decided(tmp_path: Path) -> None:
    (tmp_path / "frr.conf").write_text("no ipv6 forwarding\n")
    path = tmp_path / "one.clab.yml"
    path.write_text(
        "name: one\ntopology:\n  nodes:\n    r1:\n      kind: linux\n"
        '      binds: ["frr.conf:/etc/frr/frr.conf"]\n'
        "      sysctls: {net.ipv4.fib_multipath_hash_policy: 1}\n"
        "      exec:\n        - sysctl -w net.ipv4.fib_multipath_hash_policy=0\n"
        "        - sysctl -w net.ipv4.fib_multipath_hash_seed=none\n"
    )
    made = import_topology(path, "netns")
    stored = {"name": "one", "runtime": "netns", "phase": "running", "spec": made.spec_data()}
    again = ImportedLab.of_record(Record(**json.loads(json.dumps({**stored, "imported": made.recorded()}))))
    assert again.own_sysctls() == made.own_sysctls()
    assert [(each.value, each.source, each.certain) for each in again.own_sysctls()["r1"][IPV6]] == [
        ("0", "frr.conf: no ipv6 forwarding", True)
    ]
    assert again.own_hashing() == {"r1": {"net.ipv4.fib_multipath_hash_policy": "0"}}, "the command comes last"
