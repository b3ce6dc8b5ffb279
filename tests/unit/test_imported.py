"""Topologies of one's own: names, variables, inheritance, the sysctls they set, and the fabric made of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from heddle.base.problems import InputError
from heddle.base.state import Record
from heddle.endpoints.runoptions import run_options
from heddle.fabric.fabricfile import load_fabric
from heddle.lab.imported import frr
from heddle.lab.imported.choose import blueprint_of, files_of
from heddle.lab.imported.copy import copied, settings_of
from heddle.lab.imported.description import BindDescription, NodeDescription
from heddle.lab.imported.grammar import expand, lab_name, literal
from heddle.lab.imported.imported import ImportedLab, import_topology
from heddle.lab.opening import Rendered
from heddle.lab.thresholds import changed
from heddle.render.dialects import RenderOptions
from heddle.runtimes.netns_topology import read_topology
from heddle.traffic.plan import build_plan
from heddle.views.fabricsvg import fabric_svg
from heddle.views.picturelayout import PictureLayout
from tests.answers import Answers
from tests.own_topologies import mini_clos

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def make(text: str) -> Path:
        path = tmp_path / "own.clab.yml"
        path.write_text(text)
        return path

    return make


def ran(made: ImportedLab, runtime: str = "netns") -> dict[str, dict[str, object]]:
    """The nodes of the copy that runs."""
    assert made.description is not None
    text = copied(made.description, made.fabric, Path("/out"), RenderOptions(), runtime)
    nodes: dict[str, dict[str, object]] = yaml.safe_load(text.replace("$$", "$"))["topology"]["nodes"]
    return nodes


def test_topologies_and_fabric_files_are_told_apart(write: Write, tmp_path: Path) -> None:
    topology = write("name: a\ntopology: {nodes: {a: {kind: linux}}}\n")
    with pytest.raises(InputError, match=r"is a containerlab topology, not a fabric file\n.*up /"):
        load_fabric(str(topology))
    (fabric := tmp_path / "mine.yml").write_text("name: mine\nracks: 3\nctsw: 5\n")
    with pytest.raises(InputError, match=r"is a fabric file, not a containerlab topology\n.*up /.*mine\.yml "):
        import_topology(fabric, "netns")
    # Up takes a topology in place of a fabric.
    own = mini_clos(tmp_path)
    made, source = blueprint_of(str(own), "netns")
    assert isinstance(made, ImportedLab) and source == str(own)
    assert isinstance(blueprint_of("zone", "netns")[0], Rendered)
    assert isinstance(blueprint_of(str(fabric), "netns")[0], Rendered)


def test_a_file_that_is_wrong_is_explained_by_the_reader_that_it_is_for(tmp_path: Path, answers: Answers) -> None:
    def read(name: str, text: str) -> object:
        (tmp_path / name).write_text(text)
        return blueprint_of(str(tmp_path / name), "netns")

    answers(read)


def test_a_files_name_is_brought_to_heddles_rule(write: Write, answers: Answers) -> None:
    def name(own: str) -> str:
        made = import_topology(write(f"name: {own}\ntopology: {{nodes: {{a: {{kind: linux}}}}}}\n"), "netns")
        assert made.fabric.name == lab_name(own)
        return "\n".join([made.fabric.name, *(note for note in made.notes if "is named" in note)])

    answers(name)


def test_a_node_has_a_name_of_63_letters_at_most_and_is_told_apart_by_the_last(write: Write) -> None:
    text = "name: x\ntopology: {nodes: {%s1: {kind: linux}, %s2: {kind: linux}}}\n"
    most = "n" * 62
    assert len(import_topology(write(text % (most, most)), "netns").fabric.nodes) == 2
    with pytest.raises(InputError, match=r"nodes\.n{63}1 is no valid node name: use 63 letters"):
        import_topology(write(text % (f"{most}n", most)), "netns")


def test_variables_are_replaced_as_containerlab_does(answers: Answers) -> None:
    answers(lambda text: expand(text, "x", {"A": "one", "E": ""}))


def test_text_can_be_kept_from_being_replaced() -> None:
    assert expand(literal("$A ${A:=b} $$"), "x", {"A": "one"}) == "$A ${A:=b} $$"


def test_nodes_inherit_from_node_group_kind_and_defaults(write: Write) -> None:
    path = write("""
name: x
topology:
  defaults: {kind: linux, exec: [d], env: {A: d, B: d}, sysctls: {net.x: 1}}
  kinds: {linux: {group: g, exec: [k], env: {B: k, C: 007}, binds: ["own.clab.yml:/etc/frr/x"]}}
  groups:
    g: &g {exec: [g, d], image: from-group, binds: ["own.clab.yml:/etc/frr/x:ro"]}
    h: {<<: *g, image: from-h, kind: linux}
  nodes:
    a: {exec: [a], env: {C: a}, image: "from:a"}
    b: {group: h}
""")
    nodes = ran(import_topology(path, "containerlab"), "containerlab")
    assert nodes["a"]["exec"] == ["d", "k", "g", "a"]
    assert nodes["a"]["env"] == {"A": "d", "B": "k", "C": "a"}
    assert nodes["b"]["env"] == {"A": "d", "B": "k", "C": "007"}
    assert (nodes["a"]["image"], nodes["b"]["image"]) == ("from:a", "from-h")
    assert nodes["a"]["binds"] == [f"{path}:/etc/frr/x:ro"]
    assert nodes["b"]["group"] == "h"


def test_the_copy_means_the_same_to_both_runtimes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROLE", raising=False)
    path = mini_clos(tmp_path, image="heddle/switch:1")
    for runtime in ("netns", "containerlab"):
        made = import_topology(path, runtime)
        copy = made.write(tmp_path / runtime, RenderOptions())
        assert copy.stat().st_mode & 0o077 == 0, "values of variables of the environment are in it"
        topology = read_topology(copy)
        topology.check_honoured()
        assert topology.name == "miniclos"
        assert topology.nodes["h1"].env == {"ROLE": "server for $5"}
        sources = {bind.target: bind.source for bind in topology.nodes["Spine-1"].binds}
        assert sources["/etc/frr/frr.conf"] == tmp_path / "configs/Spine-1.conf"
        assert sources[frr.START] == tmp_path / runtime / "start.sh"
        assert topology.nodes["leaf-1"].exec == (f"sh {frr.START}",)
        own = {"heddle-files": "own"} if runtime == "netns" else {}
        assert topology.nodes["leaf-1"].labels == {"heddle-lab": "miniclos"} | own


def test_heddle_starts_daemons_only_if_nothing_else_starts_them(tmp_path: Path) -> None:
    path = mini_clos(tmp_path, image="quay.io/frrouting/frr:10.3.1")
    assert f"sh {frr.START}" in str(ran(import_topology(path, "netns"))["leaf-1"])
    assert frr.START not in str(ran(import_topology(path, "containerlab"), "containerlab"))


def test_commands_that_start_frr_are_known(write: Write, answers: Answers) -> None:
    def left(line: str) -> object:
        node = f'{{kind: linux, binds: ["own.clab.yml:/etc/frr/frr.conf"], exec: ["{line}"]}}'
        nodes = ran(import_topology(write(f"name: x\ntopology: {{nodes: {{a: {node}}}}}\n"), "netns"))
        return nodes["a"]["exec"]

    answers(left)


@pytest.mark.parametrize(
    ("pairs", "rows"),
    [
        ("h1-r1 h2-r1", {"leaf": ["r1"]}),
        ("h1-r1 h2-r2 r1-r3 r2-r3", {"leaf": ["r1", "r2"], "spine": ["r3"]}),
        (
            "h1-r1 h2-r2 r1-r3 r2-r4 r3-r5 r4-r5",
            {"leaf": ["r1", "r2"], "spine": ["r3", "r4"], "superspine": ["r5"]},
        ),
    ],
)
def test_a_topology_has_levels_of_its_own(pairs: str, rows: dict[str, list[str]], write: Write) -> None:
    names = [*dict.fromkeys(pairs.replace("-", " ").split())]
    bind = '{kind: linux, binds: ["own.clab.yml:/etc/frr/frr.conf"]}'
    nodes = "".join(f"    {name}: {bind if name.startswith('r') else '{kind: linux}'}\n" for name in names)
    used: dict[str, int] = {}
    links = ""
    for pair in pairs.split():
        ends = []
        for node in pair.split("-"):
            used[node] = used.get(node, 0) + 1
            ends.append(f'"{node}:eth{used[node]}"')
        links += f"    - endpoints: [{', '.join(ends)}]\n"
    fabric = import_topology(write(f"name: x\ntopology:\n  nodes:\n{nodes}  links:\n{links}"), "netns").fabric
    found: dict[str, list[str]] = {}
    for each in fabric.nodes:
        found.setdefault(fabric.level_of(each).title, []).append(each.name)
    assert {title: sorted(members) for title, members in found.items()} == {**rows, "hosts": ["h1", "h2"]}
    top = list(rows.values())[-1]
    assert all(link.b[0] in top for link in fabric.links if {link.a[0], link.b[0]} & {*top}), "`b` is above `a`"
    # Status, pictures and the report take the titles from the levels.
    svg = fabric_svg(PictureLayout(fabric), title="x")
    assert all((f">{title}</text>" in svg) == (title in found) for title in ("hosts", "leaf", "spine", "superspine"))
    # Heddle's own hints name a level that the topology has.
    with pytest.raises(InputError, match=rf"--switch '{fabric.top_level.word}\*'"):
        changed(fabric, fabric.policy.queues, ["kmax"])


def test_links_larger_than_pfc_can_hold_back_have_no_lossless_class(write: Write) -> None:
    nodes = "    a: {kind: linux}\n    b: {kind: linux}\n"
    for mtu, lossless in ((60_000, [3]), (60_001, [])):
        ends = "[{node: a, interface: eth1}, {node: b, interface: eth1}]"
        links = f"    - {{type: veth, mtu: {mtu}, endpoints: {ends}}}\n"
        made = import_topology(write(f"name: x\ntopology:\n  nodes:\n{nodes}  links:\n{links}"), "netns")
        assert made.fabric.policy.queues.lossless == tuple(lossless)
        assert any("above 60000" in note for note in made.notes) == (not lossless)


def test_nodes_with_frr_are_switches_and_those_with_hosts_are_leaves(tmp_path: Path) -> None:
    fabric = import_topology(mini_clos(tmp_path), "netns").fabric
    assert {n.name: n.level for n in fabric.nodes} == {
        **dict.fromkeys(("leaf-1", "leaf-2"), 1),
        **dict.fromkeys(("Spine-1", "Spine-2"), 2),
        **dict.fromkeys(("h1", "h2"), 0),
    }
    leaf = fabric.by_name["leaf-1"]
    assert [(p.name, str(p.address), p.rate_bps, p.mtu) for p in leaf.ports] == [
        ("eth1", "10.0.1.1/31", 100_000_000, 9500),
        ("eth2", "10.0.1.3/31", 100_000_000, 9500),
        ("eth3", "10.1.1.1/24", 50_000_000, 4200),
    ]
    assert str(fabric.by_name["h2"].ports[0].address) == "10.1.2.2/24"
    assert fabric.policy.k == 400 * 10**9 // 50_000_000
    assert fabric.policy.ib_mtu == 4096
    macs = [port.mac for node in fabric.nodes for port in node.ports]
    assert len(set(macs)) == len(macs) == 12


def test_addresses_are_read_from_frr_conf_and_commands() -> None:
    text = "interface eth1\n description x\n ip address 10.0.0.1/31\n!\ninterface eth2\n!\nrouter bgp 1\n"
    assert {k: str(v) for k, v in frr.configured_addresses(text).items()} == {"eth1": "10.0.0.1/31"}
    lines = ["ip a add 10.1.0.1/24 dev eth1", "sh -c 'ip link set eth2 up; ip address add 10.2.0.1/24 dev eth2'"]
    found = frr.command_addresses([*lines, "ip -6 addr add fd00::1/64 dev eth3", "ip link set eth4 up"])
    assert {k: str(v) for k, v in found.items()} == {"eth1": "10.1.0.1/24", "eth2": "10.2.0.1/24"}
    assert frr.daemons_of("bgpd=yes\nospfd=no\n#isisd=yes\n") == ("mgmtd", "zebra", "staticd", "bgpd")


def test_hosts_without_addresses_cannot_run_and_are_named(write: Write) -> None:
    path = write(
        "name: bare\ntopology:\n  defaults: {kind: linux}\n  nodes:\n"
        '    r1: {binds: ["own.clab.yml:/etc/frr/frr.conf"]}\n'
        "    h1: {exec: [ip addr add 10.2.1.9/24 dev eth1]}\n    h2: {}\n"
        '  links:\n    - endpoints: ["r1:eth1", "h1:eth1"]\n    - endpoints: ["r1:eth2", "h2:eth1"]\n'
    )
    with pytest.raises(InputError, match="h2:eth1 has no IPv4 address"):
        build_plan(import_topology(path, "netns").fabric, run_options(size="64K"))


def test_flags_of_a_fabric_file_and_files_that_do_not_exist_are_errors(tmp_path: Path) -> None:
    own = str(mini_clos(tmp_path))
    wrong: list[tuple[str | None, dict[str, Any], str]] = [
        (None, {}, "needs a fabric or a containerlab topology"),
        (own, {"overrides": ["racks=3"]}, "changes a key of a fabric file, and a topology has none"),
        (own, {"dialect": "frr"}, "this one is user-supplied"),
        (own, {"name": "../x"}, "is not a valid lab name"),
        (str(tmp_path / "none.yml"), {}, "does not exist"),
    ]
    for fabric, options, why in wrong:
        with pytest.raises(InputError, match=why):
            blueprint_of(fabric, "netns", **options)
    assert blueprint_of(own, "netns", name="mine")[0].fabric.name == "mine"


def test_files_of_a_topology_and_a_record_of_it_go_elsewhere(tmp_path: Path) -> None:
    own = mini_clos(tmp_path)
    names = {Path(name).name for name in files_of(str(own))}
    assert names == {own.name, "daemons", "vtysh.conf", "leaf-1.conf", "leaf-2.conf", "Spine-1.conf", "Spine-2.conf"}
    # A record gives the same lab again.
    made = import_topology(own, "netns")
    stored = {"name": "miniclos", "runtime": "netns", "phase": "running", "spec": made.spec_data()}
    record = Record(**json.loads(json.dumps({**stored, "imported": made.recorded()})))
    again = ImportedLab.of_record(record)
    assert again.fabric == made.fabric
    assert again.daemons("leaf-1") == ("zebra", "bgpd")
    assert made.differences(record) == []


def test_a_sysctl_that_is_the_whole_machines_is_refused_in_a_namespace(write: Write) -> None:
    path = write(
        "name: own\ntopology:\n  nodes:\n    a:\n      kind: linux\n      sysctls:\n"
        "        net.ipv4.ip_forward: 1\n        kernel.pid_max: 32768\n        net./etc/hosts: 1\n"
    )
    with pytest.raises(InputError) as caught:
        import_topology(path, "netns")
    assert [problem.where.rpartition(":")[2] for problem in caught.value.problems] == ["8", "9"]
    assert "kernel.pid_max is one value for the whole machine" in str(caught.value)
    assert import_topology(path, "containerlab").description is not None, "an engine judges for itself"


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


def test_frr_decides_forwarding_under_both_names(tmp_path: Path) -> None:
    assert values(tmp_path, frr_conf="hostname r1\nno ipv6 forwarding\n!\n")[IPV6] == ["0"]
    assert values(tmp_path, frr_conf="ipv6 forwarding\n")[IPV6] == ["1"]
    assert values(tmp_path, zebra_conf="no  ip forwarding \n")[IPV4] == ["0"]
    assert values(tmp_path, frr_conf="interface eth1\n no ip forwarding\n! no ipv6 forwarding\n") == {}
    # Both names of ipv4 forwarding are one setting.
    found = values(tmp_path, "sysctl -w net.ipv4.conf.all.forwarding=0", frr_conf="ip forwarding\n")
    assert found == {IPV4: ["1", "0"], "net.ipv4.conf.all.forwarding": ["1", "0"]}


def test_commands_decide(tmp_path: Path, answers: Answers) -> None:
    files = {
        "setup.sh": "#!/bin/sh\nsysctl -w net.ipv4.ip_forward=0 # no routing\n",
        "values": "# x\nnet.ipv4.ip_forward = 0\n",
    }
    answers(lambda command: values(tmp_path, command, **files))


def test_other_commands_decide_nothing(tmp_path: Path, answers: Answers) -> None:
    answers(lambda command: values(tmp_path, command, **{"setup.sh": "sysctl -w net.ipv4.ip_forward=0\n"}))


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
