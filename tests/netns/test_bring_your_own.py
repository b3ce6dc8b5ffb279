"""A topology that Heddle has not written comes up, or its reason is named, and all works on it. Both runtimes."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path

import pytest

from heddle.base import state
from heddle.base.events import Silent
from heddle.base.problems import CheckError, InputError, MachineError
from heddle.checks.validate import CheckResult, validate
from heddle.endpoints.runoptions import run_options
from heddle.lab import lifecycle as life
from heddle.lab.imported.imported import import_topology
from heddle.lab.inventory import read_inventory
from heddle.lab.lab import Lab
from heddle.lab.opening import open_lab
from heddle.lab.snapshot import LabPart
from heddle.lab.status import status
from heddle.runs.run import run
from heddle.runs.store import paths_of
from heddle.views.labtext import up_text
from tests.listener import Listener
from tests.machine import patience
from tests.netns.collectives import proven
from tests.netns.live import document, failed, in_node
from tests.own_topologies import DAEMONS, frr_conf, mini_clos
from tests.typed import typed

Leftovers = Callable[[str], list[str]]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mini_clos(tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="module")
def clos(own: Path, runtime: str, lab_name: Callable[[], str]) -> Iterator[Lab]:
    name = lab_name()
    yield life.up(import_topology(own, runtime, name), runtime=runtime, source=str(own)).lab
    life.down(name)


@pytest.mark.containers
def test_it_is_up_as_its_file_says(clos: Lab, own: Path) -> None:
    (found,) = status(clos.name)
    assert (found.state, found.converged, found.faults) == ("up", True, ())
    assert (found.switches, found.hosts, found.links) == (4, 2, 6)
    assert (found.bgp.established, found.bgp.expected) == (4, 4)
    assert found.source == str(own)
    assert [node.name for node in clos.fabric.switches] == ["leaf-1", "leaf-2", "Spine-1", "Spine-2"]
    assert clos.fabric.by_name["leaf-1"].port("eth3").rate_bps == 50_000_000


def test_inspect_has_the_as_numbers_that_its_daemons_report(clos: Lab) -> None:
    nodes = {node.name: node for node in read_inventory(clos).nodes}
    wanted = {"leaf-1": 65001, "leaf-2": 65002, "Spine-1": 65100, "Spine-2": 65100, "h1": 0}
    assert {name: nodes[name].asn for name in wanted} == wanted
    first = nodes["leaf-1"].ports[0]
    assert (first.peer, first.peer_as, first.bgp) == ("Spine-1:eth1", 65100, "Established")
    assert first.addresses == ("10.0.1.1/31",)
    assert nodes["h1"].ports[0].addresses == ("10.1.1.2/24",)


@pytest.mark.containers
def test_commands_run_in_its_nodes(clos: Lab) -> None:
    routes = clos.output("leaf-1", ["ip", "route", "show", "10.1.2.0/24"])
    assert routes.count("nexthop") == 2
    assert "65100" in clos.output("leaf-1", ["vtysh", "-c", "show bgp summary"])
    assert clos.output("h1", ["printenv", "ROLE"]) == "server for $5\n"
    assert clos.output("leaf-1", ["hostname"]) == "leaf-1\n"


@pytest.mark.containers
def test_paths_of_a_run_are_proven(clos: Lab) -> None:
    result = run(clos, run_options(size="256K", qps=16, iters=2), Silent())
    assert result.wrong == 0
    proof = proven(clos)
    assert {row.measured[0] for row in proof.flows if row.flow.src == "h1"} == {"leaf-1:eth1", "leaf-1:eth2"}
    assert {len(row.measured) for row in proof.flows} == {3}


@pytest.mark.containers
def test_everything_about_it_validates(clos: Lab) -> None:
    checks = validate(clos)
    assert {check.name: check.detail for check in checks if not check.ok} == {}
    assert [check.name for check in checks if check.skipped] == [
        "links", "addresses", "polarisation", "attached", "separation",
    ]  # fmt: skip


def test_a_reopened_lab_is_the_same(clos: Lab) -> None:
    assert open_lab(clos.name).fabric == clos.fabric
    assert json.loads((clos.dir / "lab.json").read_text())["imported"]["owners"]["10.255.0.1"] == "leaf-1"


@pytest.mark.deep
def test_up_again_does_nothing_and_a_changed_file_is_named(clos: Lab, own: Path, runtime: str) -> None:
    assert not life.up(import_topology(own, runtime, clos.name), runtime=runtime).created
    other = own.with_name("changed.clab.yml")
    other.write_text(own.read_text().replace("10.1.2.2/24", "10.1.2.3/24"))
    with pytest.raises(InputError, match=r"nodes\.h2\.exec: .*10\.1\.2\.3"):
        life.up(import_topology(other, runtime, clos.name), runtime=runtime)
    config = own.parent / "configs/leaf-1.conf"
    text = config.read_text()
    try:
        config.write_text(text + "! one line more\n")
        with pytest.raises(InputError, match=r"nodes\.leaf-1\./etc/frr/frr\.conf: \d+ lines"):
            life.up(import_topology(own, runtime, clos.name), runtime=runtime)
    finally:
        config.write_text(text)
    assert not life.up(import_topology(own, runtime, clos.name), runtime=runtime).created


@pytest.mark.deep
def test_a_session_that_ends_is_seen(clos: Lab) -> None:
    clos.output("Spine-2", ["vtysh", "-c", "conf t", "-c", "router bgp 65100", "-c", "neighbor 10.0.1.3 shutdown"])
    try:
        with pytest.raises(CheckError) as caught:
            clos.wait(timeout=4)
        assert "the BGP session with 10.0.1.2 (Spine-2) is" in str(caught.value)
        bgp = next(check for check in validate(clos) if check.name == "bgp")
        assert not bgp.ok
        assert "with leaf-1:eth2 is not established: it is shut down at Spine-2" in bgp.detail
        (missing,) = status(clos.name)[0].missing_sessions
        assert (missing.a.ref, missing.b.ref) == ("leaf-1:eth2", "Spine-2:eth1")
        assert missing.why == "it is shut down at Spine-2 (neighbor 10.0.1.3 shutdown)"
    finally:
        clos.output(
            "Spine-2", ["vtysh", "-c", "conf t", "-c", "router bgp 65100", "-c", "no neighbor 10.0.1.3 shutdown"]
        )
        clos.wait(timeout=60)


@pytest.mark.deep
def test_routes_that_still_change_have_not_converged(clos: Lab) -> None:
    netns = str(clos.handle("leaf-1").netns)
    stop = threading.Event()

    def flap() -> None:
        for word in cycle(("add", "del")):
            route = ["ip", "route", word, "unreachable", "10.250.0.0/24"]
            subprocess.run(["nsenter", f"--net={netns}", *route], check=True)
            if stop.wait(0.7) and word == "del":
                return

    flapping = threading.Thread(target=flap)
    flapping.start()
    try:
        with pytest.raises(CheckError, match="routes still change after 4 s"):
            clos.wait(timeout=4)
    finally:
        stop.set()
        flapping.join()
    clos.wait(timeout=60)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("policy", "kernel", "reason"),
    [
        ("0x1, net.ipv4.fib_multipath_hash_seed: 0", "1", "random seed that Linux does not show"),
        ("3, net.ipv4.fib_multipath_hash_fields: 0x0003", "3", ""),
    ],
)
def test_the_files_own_hashing_wins_and_is_predicted_where_it_can_be(
    policy: str, kernel: str, reason: str, tmp_path: Path, runtime: str, name: str
) -> None:
    made = import_topology(mini_clos(tmp_path, policy=policy), runtime, name)
    assert any("4 switches keep the hashing sysctls that the topology sets" in note for note in made.notes)
    lab = life.up(made, runtime=runtime).lab
    assert lab.output("leaf-1", ["cat", "/proc/sys/net/ipv4/fib_multipath_hash_policy"]).strip() == kernel
    run(lab, run_options(size="64K", qps=8, iters=1), Silent())
    if reason:
        with pytest.raises(CheckError, match=reason):
            paths_of(lab)
    else:
        proven(lab)
    assert [*failed(lab)] == (["paths"] if reason else [])


@pytest.mark.deep
@pytest.mark.containers
def test_static_routes_are_enough(tmp_path: Path, runtime: str, name: str) -> None:
    for router, far in ((1, 2), (2, 1)):
        (tmp_path / f"r{router}.conf").write_text(
            f"interface eth1\n ip address 10.9.0.{router}/30\n!\ninterface eth2\n ip address 10.2.{router}.1/24\n!\n"
            f"ip route 10.2.{far}.0/24 10.9.0.{far}\n"
        )
    nodes = "\n".join(f'    r{i}: {{binds: ["r{i}.conf:/etc/frr/frr.conf"]}}' for i in (1, 2))
    hosts = "\n".join(f"    h{i}: {{exec: [ip addr add 10.2.{i}.9/24 dev eth0]}}" for i in (1, 2))
    path = tmp_path / "static.clab.yml"
    path.write_text(
        f"name: static\ntopology:\n  defaults: {{kind: linux, network-mode: none}}\n  nodes:\n{nodes}\n{hosts}\n"
        '  links:\n    - endpoints: ["r1:eth1", "r2:eth1"]\n    - endpoints: ["r1:eth2", "h1:eth0"]\n'
        '    - endpoints: ["r2:eth2", "h2:eth0"]\n'
    )
    lab = life.up(import_topology(path, runtime, name), runtime=runtime).lab
    assert lab.blueprint.sessions(lab.snapshot(LabPart.SESSIONS)) == (0, 0)
    checks = {check.name: check for check in validate(lab)}
    assert checks["bgp"].skipped
    assert checks["routes"].ok
    assert not checks["reachability"].ok, "the hosts have no route to each other, and that is said"
    run(lab, run_options(size="64K", iters=1), Silent())
    proven(lab)


def one_switch(directory: Path, daemons: str, conf: str, image: str = "") -> Path:
    (directory / "daemons").write_text(daemons)
    (directory / "frr.conf").write_text(conf)
    path = directory / "wrong.clab.yml"
    binds = '["daemons:/etc/frr/daemons", "frr.conf:/etc/frr/frr.conf"]'
    keys = f"kind: linux, binds: {binds}" + (f', image: "{image}"' if image else "")
    path.write_text(f"name: wrong\ntopology:\n  nodes:\n    r1: {{{keys}}}\n")
    return path


@pytest.mark.deep
def test_a_daemon_that_refuses_its_options_is_named(tmp_path: Path, lab_name: Callable[[], str], runtime: str) -> None:
    name = lab_name()
    path = one_switch(tmp_path, DAEMONS.replace("bgpd_options=", "bgpd_options=--no-such-option # "), "")
    with pytest.raises(MachineError, match="no-such-option"):
        life.up(import_topology(path, runtime, name), runtime=runtime)
    assert name not in state.labs()


@pytest.mark.containers
def test_lines_that_this_frr_does_not_take_are_named_and_the_others_are_loaded(
    tmp_path: Path, name: str, runtime: str
) -> None:
    conf = frr_conf("r1", 65001, "10.0.0.1", {}, {}, []).replace(" bgp router-id", " bgp rooter-id")
    conf += "router bgp 65001\n neighbor 10.9.9.9 peer-group MISSING\n!\nip route 10.8.0.0/16 Null0\n"
    heard = Listener()
    image = "" if runtime == "containerlab" else "quay.io/frrouting/frr:99.1"
    lab = life.up(
        import_topology(one_switch(tmp_path, DAEMONS, conf, image), runtime, name), runtime=runtime, observer=heard
    ).lab
    here = next(number for number, line in enumerate(conf.splitlines(), 1) if "rooter-id" in line)
    unknown, refused, hint = heard.warnings
    assert re.fullmatch(rf"r1: frr.conf:{here}  bgp rooter-id 10.0.0.1  is unknown to FRR [\d.]+\S*( .*)?", unknown)
    assert not image or unknown.endswith(f"; the image is {image}")
    assert re.match(r"r1: frr.conf:\d+  neighbor 10.9.9.9 peer-group MISSING  was refused by bgpd of FRR \d", refused)
    assert hint.startswith("hint: all other lines are loaded")
    assert "10.8.0.0/16" in lab.output("r1", ["vtysh", "-c", "show running-config"])


def test_the_command_line_takes_it_and_switches_its_hashing(
    own: Path, runtime: str, lab_name: Callable[[], str], leftovers: Leftovers
) -> None:
    name = lab_name()
    try:
        done = typed("up", str(own), "--name", name, "--runtime", runtime, "--format", "json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["converged"] is True
        assert "left out: prefix" in done.stderr
        for words, policy in (("e-ecmp", 1), ("spray", 1), ("flow --set policy=l3", 0)):
            rows = document("hashing", *words.split(), "--lab", name)["switches"]
            assert {(row["mode"], row["policy"]) for row in rows} == {(words.split()[0], policy)}
        needs = "the expected routes of a fabric file"
        for line, why in (
            ("hashing pinned", "needs the expected routes"),
            ("hashing flow --set resilient=true", "needs the expected routes"),
            ("hashing spray --set choice=round-robin", "needs the expected routes"),
            ("hashing exact-match --entry leaf-1,49152,10.1.2.0/24,eth1", f"needs {needs}"),
            ("te watch", f"need {needs}"),
            ("fault down leaf-1:eth1", "was imported"),
        ):
            refused = typed(*(word.replace(",", " ") for word in line.split()), "--lab", name)
            assert (refused.returncode, why in refused.stderr) == (2, True), line + refused.stderr
    finally:
        assert typed("down", name).returncode == 0
    assert leftovers(name) == []


def test_hosts_alone_are_a_lab_that_does_not_claim_to_have_converged(
    tmp_path: Path, runtime: str, name: str, leftovers: Leftovers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heddle.views.labtext.place_flag", lambda: "")  # with a place fewer commands are shown
    hosts = "".join(f"    h{n}: {{exec: [ip addr add 10.9.0.{n}/24 dev eth1, test -d /]}}\n" for n in (1, 2))
    (tmp_path / "two.clab.yml").write_text(
        f"name: two\ntopology:\n  defaults: {{kind: linux}}\n  nodes:\n{hosts}"
        '  links:\n    - endpoints: ["h1:eth1", "h2:eth1"]\n'
    )
    warned: list[list[str]] = []
    listener = Listener(at={"create": lambda: warned.append([*listener.warnings])})
    done = life.up(import_topology(tmp_path / "two.clab.yml", runtime, name), runtime=runtime, observer=listener)
    assert warned == [
        ["exec: test -d / (h1, h2): runs as root of this machine: it reads all files; what it writes stays in the node"]
    ]
    assert f"./inv exec --lab {name} h1 ip route;" in up_text(done)
    assert "no routing program runs, so there is nothing to converge" in up_text(done) and done.converged is None
    assert "converged" not in up_text(done) and status(name)[0].converged is None
    again = life.up(import_topology(tmp_path / "two.clab.yml", runtime, name), runtime=runtime, repair=True)
    assert again.converged is None and "nothing to repair; no routing program" in up_text(again)
    assert "dev eth1 src 10.9.0.1" in done.lab.output("h1", ["ip", "route", "get", "10.9.0.2"])
    assert all(check.ok for check in validate(done.lab))
    life.down(name)
    assert leftovers(name) == []


NODES = """name: ring
topology:
  defaults: {kind: linux}
  groups:
    routers:
      binds: ["daemons:/etc/frr/daemons", "__clabNodeName__.conf:/etc/frr/frr.conf"]
  nodes:
    r1: {group: routers}
    r2: {group: routers}
    r3: {group: routers}
    h1: {exec: [ip addr add 10.1.1.2/24 dev eth1, ip route add 10.0.0.0/8 via 10.1.1.1]}
    h2:
      exec: [ip addr add 10.1.2.2/24 dev eth1, ip route add 10.0.0.0/8 via 10.1.2.1]
  links:
    - endpoints: ["r1:eth1", "r2:eth1"]
    - endpoints: ["r1:eth2", "r3:eth1"]
    - endpoints: ["r1:eth3", "h1:eth1"]
    - endpoints: ["r2:eth3", "h2:eth1"]
"""
IPV6, IPV4 = "net.ipv6.conf.all.forwarding", "net.ipv4.ip_forward"
DEAD_S = round(patience(40))  # until a designated router is elected; the test ends before that
NO_IPV6 = "net.ipv6.conf.all.disable_ipv6"


def ring(directory: Path, ospf: str = "", far: str = "") -> Path:
    """r1 between r2 and r3, hosts at r1 and r2, OSPF everywhere. ospf: more for interfaces; far: r3's own lines."""
    (directory / "daemons").write_text("ospfd=yes\nisisd=yes\n")
    for number, ports in ((1, ("10.0.12.1", "10.0.13.1")), (2, ("10.0.12.2", None)), (3, ("10.0.13.3", None))):
        text = "no ipv6 forwarding\n!\n"
        for port, address in enumerate(ports, 1):
            if address is not None:
                lines = far if number == 3 else f" ip ospf area 0\n{ospf}"
                isis = " ip router isis x\n" if (number, port) != (3, 1) else ""
                text += f"interface eth{port}\n ip address {address}/24\n{lines}{isis}!\n"
        text += f"interface eth3\n ip address 10.1.{number}.1/24\n ip ospf area 0\n ip ospf passive\n!\n"
        text += f"router ospf\n ospf router-id 1.1.1.{number}\n!\n"
        text += f"router isis x\n net 49.0001.0000.0000.000{number}.00\n is-type level-2-only\n!\n"
        (directory / f"r{number}.conf").write_text(text)
    path = directory / "ring.clab.yml"
    path.write_text(NODES)
    return path


def sysctls(lab: Lab) -> CheckResult:
    return next(check for check in validate(lab) if check.name == "sysctls")


@pytest.mark.deep
def test_the_reason_names_neighbours_and_hosts(tmp_path: Path, runtime: str, name: str) -> None:
    heard = Listener()
    with pytest.raises(CheckError) as caught:
        path = ring(tmp_path, f" ip ospf hello-interval 2\n ip ospf dead-interval {DEAD_S}\n")
        life.up(import_topology(path, runtime, name), runtime=runtime, observer=heard, timeout=patience(8))
    last = heard.reasons[-1]
    states = f"(Init, dead interval {DEAD_S} s|2-Way, the designated router is elected after {DEAD_S} s); r2"
    assert re.match(rf"r1:eth1 OSPF neighbour 10\.0\.12\.2 is in {states}", last), last
    assert "r2 (and 1 more) has no route to h1:eth1 (10.1.1.2)" in last
    said = str(caught.value)
    assert f"r1:eth2  OSPF has no neighbour yet, dead interval {DEAD_S} s" in said
    assert "r1:eth2  IS-IS has no neighbour yet" in said
    assert "r1:eth1  IS-IS" not in said, "that one is up"
    assert "r1:eth3" not in said, "no switch is behind it"
    assert "vtysh -c 'show ip ospf neighbor'" in said


@pytest.mark.deep
@pytest.mark.needs("procps")
@pytest.mark.long
def test_values_set_by_the_configuration_are_no_fault(tmp_path: Path, runtime: str, name: str) -> None:
    quick = " ip ospf network point-to-point\n ip ospf hello-interval 1\n ip ospf dead-interval 4\n"
    path = ring(tmp_path, quick, f" ip ospf area 0\n{quick}")
    path.write_text(NODES.replace("via 10.1.2.1]", f"via 10.1.2.1, sysctl -w {NO_IPV6}=1]"))
    life.up(import_topology(path, runtime, name), runtime=runtime)
    lab = open_lab(name)
    assert failed(lab) == {}
    found = sysctls(lab)
    notes = (
        f"{IPV6} is 0 on r1, r2, r3, as the topology sets it (frr.conf: no ipv6 forwarding)",
        f"{NO_IPV6} is 1 on h2, as the topology sets it (sysctl -w {NO_IPV6}=1)",
    )
    assert found.notes == notes
    assert found.detail.endswith("; ".join(notes))
    assert found.to_json()["notes"] == list(notes)
    (row,) = lab.snapshot(LabPart.ADJACENCIES).adjacencies
    before = status(name)[0]
    assert row.text() == "r1:eth2 IS-IS has no neighbour yet", "it is at one end only"
    assert (before.converged, before.faults, before.gaps) == (True, (), ())
    for node, change in (("r1", f"{IPV6}=1"), ("r2", f"{IPV4}=0"), ("h1", f"{NO_IPV6}=1")):
        in_node(lab, node, f"sysctl -w {change}")
    wrong = (
        f"r1  {IPV6} is 1, and the topology sets 0 (frr.conf: no ipv6 forwarding)",
        f"r2  {IPV4} is 0, not 1",
        f"h1  {NO_IPV6} is 1, not 0",
    )
    by_hand = f"run ./inv exec --lab {name} r1 sysctl -w {IPV6}=0"
    found = sysctls(lab)
    assert not found.ok
    assert found.detail.split("; ") == [*wrong, by_hand, f"./inv up --repair --name {name} sets it again"]
    after = status(name)[0]
    assert (after.converged, after.faults, after.gaps) == (False, wrong, ()), "a fault, and routes are as they were"
    # Repair leaves what the topology sets to its own hint, which works.
    repaired = typed("up", "--repair", "--name", name)
    assert repaired.returncode == 0, repaired.stderr
    assert sysctls(lab).detail.split("; ") == [wrong[0], by_hand]
    assert typed(*by_hand.split()[2:]).returncode == 0
    assert sysctls(lab).ok and status(name)[0].converged
