"""Questions to a running lab: what is in it, which BGP session is missing and why; one command in many nodes."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from heddle.base.units import format_rate
from heddle.fabric.model import Role
from heddle.lab.inventory import read_inventory
from heddle.lab.lab import Lab
from heddle.lab.outages import link_down
from heddle.lab.status import LabStatus, status
from heddle.views.labtext import lab_text, nodes_text
from tests.machine import commands, patience, until
from tests.netns.live import started
from tests.typed import typed
from tests.unit.test_completion import offered


def inv(lab: Lab, verb: str, *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a line typed for a lab."""
    done = typed(verb, "--lab", lab.name, *words)
    return done.returncode, done.stdout, done.stderr


def status_of(lab: Lab) -> LabStatus:
    return next(row for row in status() if row.lab == lab.name)


def whys(lab: Lab) -> list[str]:
    return [each.text() for each in status_of(lab).missing_sessions]


def test_inspect_shows_nodes_addresses_ports_and_what_is_at_the_other_end(tiny: Lab) -> None:
    found = read_inventory(tiny)
    assert [node.name for node in found.nodes] == [node.name for node in tiny.fabric.nodes]
    for entry, node in zip(found.nodes, tiny.fabric.nodes, strict=True):
        assert (entry.asn or None, entry.trouble) == (node.asn, "")
        assert [port.peer for port in entry.ports] == [port.peer_ref for port in node.ports]
        assert all(port.up for port in entry.ports)
        for port, made in zip(entry.ports, node.ports, strict=True):
            there = tiny.fabric.by_name[made.peer_node]
            between = Role.HOST not in (node.role, there.role)
            assert port.bgp == ("Established" if between else "")
            assert port.peer_as == (there.asn or 0)
            if made.address is not None and tiny.fabric.policy.ip_version == 4:
                assert port.addresses == (str(made.address),)
    assert str(tiny.fabric.switches[0].loopback) in json.dumps(found.to_json()["nodes"][0]["other_addresses"]["lo"])
    text = lab_text(found)
    assert "eth1->ctsw1:eth1, eth2->ctsw2:eth1" in text and "eth1->rtsw1:eth3" in text
    assert json.loads(typed("inspect", "--format", "json").stdout) == json.loads(json.dumps(found.to_json()))


def test_inspect_shows_single_nodes_in_detail_and_says_how_to_name_one(tiny: Lab) -> None:
    text = nodes_text(read_inventory(tiny, ["rtsw1", "host2"]))
    assert "eth1  up    ctsw1:eth1" in text and "Established" in text
    assert format_rate(tiny.fabric.by_name["rtsw1"].ports[0].rate_bps) in text
    assert text.count("namespace") == 2
    found = json.loads(typed("inspect", tiny.name, "--node", "ctsw*,host1", "--format", "json").stdout)
    assert [node["node"] for node in found["nodes"]] == ["ctsw1", "ctsw2", "host1"]


def test_a_command_runs_in_all_nodes_of_a_pattern_with_their_names_before_its_lines(tiny: Lab) -> None:
    code, out, err = inv(tiny, "exec", "rtsw*,host1", "sh", "-c", "hostname; echo two")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "rtsw1: rtsw1", "rtsw1: two", "rtsw2: rtsw2", "rtsw2: two", "host1: host1", "host1: two",
    ]  # fmt: skip
    named = typed("exec", "--format", "json", tiny.name, "host1", "hostname")  # as with several labs
    assert json.loads(named.stdout)["stdout"] == "host1\n", named.stderr
    code, out, err = inv(tiny, "exec", "*tsw1", "sh", "-c", '[ "$(hostname)" = ctsw1 ] && exit 3; echo no >&2; exit 1')
    assert (code, out) == (3, "")
    assert err.splitlines() == ["rtsw1: no", "rtsw1: exit code 1", "ctsw1: exit code 3"]


def test_with_json_each_node_has_its_own_row(tiny: Lab) -> None:
    code, out, _ = inv(tiny, "exec", "--format", "json", "host[12]", "sh", "-c", "hostname; cat; exit 5")
    said: dict[str, Any] = json.loads(out)
    assert (code, said["exit_code"]) == (5, 5)
    assert [(row["node"], row["exit_code"], row["stdout"]) for row in said["nodes"]] == [
        ("host1", 5, "host1\n"), ("host2", 5, "host2\n"),
    ]  # fmt: skip


def test_ctrl_c_ends_the_command_in_all_nodes(tiny: Lab) -> None:
    def sleeping() -> int:
        return sum(each == ["sleep", "987"] for each in commands().values())

    with started("exec", "host*", "sleep", "987", lab=tiny) as process:
        until(lambda: sleeping() == len(tiny.fabric.hosts))
        process.send_signal(signal.SIGINT)
        assert process.wait(patience(20)) == 130
    assert sleeping() == 0


def test_shells_complete_nodes_and_ports_of_the_lab(tiny: Lab) -> None:
    nodes = [node.name for node in tiny.fabric.nodes]
    assert offered("exec", "--lab", tiny.name, "") == nodes
    assert offered("exec", "--lab", tiny.name, "rtsw1,ct") == [f"rtsw1,{name}" for name in nodes]
    assert offered("inspect", tiny.name, "--node", "") == nodes
    assert offered("capture", "--lab", tiny.name, "rtsw") == ["rtsw1", "rtsw2"]
    assert offered("capture", "--lab", tiny.name, "rtsw1:") == [p.ref for p in tiny.fabric.by_name["rtsw1"].ports]
    assert offered("paths", "--lab", tiny.name, "--port=host1,host2:") == ["--port=host1,host2:eth1"]
    assert offered("hashing", "--lab", tiny.name, "--switch", "") == [node.name for node in tiny.fabric.switches]


def test_status_names_the_session_of_a_link_that_is_down(tiny: Lab) -> None:
    assert whys(tiny) == []
    with link_down(tiny, "rtsw1:eth1"):
        (said,) = whys(tiny)
        assert said.startswith("rtsw1:eth1 (") and " - ctsw1:eth1 (" in said
        assert said.endswith("): rtsw1:eth1 is down")
        assert [port.up for port in read_inventory(tiny, ["ctsw1"]).nodes[0].ports] == [False, True]
    assert whys(tiny) == []


@pytest.mark.deep
def test_status_names_an_as_mismatch(tiny: Lab) -> None:
    switch = tiny.fabric.by_name["rtsw2"]

    def configure(*lines: str) -> None:
        commands = ["configure terminal", f"router bgp {switch.asn}", *lines]
        tiny.output(switch.name, ["vtysh", "-d", "bgpd", *(word for line in commands for word in ("-c", line))])

    configure("no neighbor eth1 interface peer-group FABRIC", "neighbor eth1 interface remote-as 64999")
    try:
        until(lambda: any("AS mismatch" in each for each in whys(tiny)))
        theirs = tiny.fabric.by_name["ctsw1"].asn
        (said,) = whys(tiny)
        assert said.endswith(f"AS mismatch: rtsw2 expects AS 64999, ctsw1 has AS {theirs}")
    finally:
        configure("no neighbor eth1 interface remote-as 64999", "neighbor eth1 interface peer-group FABRIC")
    until(lambda: status_of(tiny).converged and not whys(tiny))
