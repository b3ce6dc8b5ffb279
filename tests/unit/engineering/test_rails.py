"""The rail and plane lint: three reported failures, each with its pairs and remedy, and what is wrong with files."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import pytest

from heddle.base.problems import InputError
from heddle.cli.program import main
from heddle.fabric.fabricfile import load_fabric
from heddle_plugins.engineering.hostaddresses import read_addresses
from heddle_plugins.engineering.railfile import files_of_rails, hca_filter, load_rails
from heddle_plugins.engineering.rails import RailFinding, findings_of, to_text
from tests.answers import Answers
from tests.unit.engineering.test_nccl_dumps import TOPOLOGY

# vllm#44919: 16 devices of a B300, every second one in another group of routes.
B300 = [f"mlx5_{number}" for number in (0, 1, 6, 7, *range(10, 18), *range(20, 24))]


def ip_json(rows: dict[str, str], pci: dict[str, str] | None = None) -> str:
    """What `ip -d -j addr` writes: interface -> address/length."""
    found = [{"ifname": "lo", "flags": ["LOOPBACK", "UP"], "addr_info": [{"local": "127.0.0.1", "scope": "host"}]}]
    for name, text in rows.items():
        local, _, length = text.partition("/")
        info = {"family": "inet", "local": local, "prefixlen": int(length), "scope": "global", "label": name}
        row = {"ifname": name, "flags": ["BROADCAST", "UP", "LOWER_UP"], "addr_info": [info]}
        found.append(row | ({"parentbus": "pci", "parentdev": pci[name]} if pci else {}))
    return json.dumps(found)


def ip_text(rows: dict[str, str]) -> str:
    """What `ip addr` writes."""
    lines = ["1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536", "    inet 127.0.0.1/8 scope host lo"]
    for number, (name, text) in enumerate(rows.items(), 2):
        lines.append(f"{number}: {name}: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 9000 qdisc mq state UP group default")
        lines.append("    link/ether 94:6d:ae:00:00:01 brd ff:ff:ff:ff:ff:ff")
        lines.append(f"    inet {text} brd 172.31.255.255 scope global {name}")
        lines.append("    inet6 fe80::966d:aeff:fe00:1/64 scope link")
    return "\n".join([*lines, ""])


def found(folder: Path, text: str) -> list[RailFinding]:
    (folder / "rails.yml").write_text(text)
    return findings_of(load_rails(str(folder / "rails.yml")))


def ends(finding: RailFinding) -> list[str]:
    return [f"{a.host}:{a.hca} {b.host}:{b.hca}" for a, b in finding.first]


def rail_only(folder: Path) -> str:
    """nccl#2013: 8 hosts with 8 NICs, each NIC number in a subnet of its own; nothing is set."""
    devices = ", ".join(f"mlx5_{nic}: rdma{nic}" for nic in range(8))
    text = f"devices: {{{devices}}}\nhosts:\n"
    for host in range(1, 9):
        (folder / f"node{host}.json").write_text(ip_json({f"rdma{nic}": f"10.0.{nic}.{host}/24" for nic in range(8)}))
        text += f"  node{host}: {{addr: node{host}.json}}\n"
    return text


def test_nccl_2013_rings_on_disjoint_rails_need_cross_nic_0(tmp_path: Path) -> None:
    text = rail_only(tmp_path)
    (one,) = found(tmp_path, text)
    assert (one.pairs, one.remedy) == (28 * 8 * 7, "NCCL_CROSS_NIC=0")
    assert one.kind == "cannot reach each other" and one.uses == ("collectives", "send-recv")
    assert ends(one) == ["node1:mlx5_0 node2:mlx5_1", "node1:mlx5_0 node3:mlx5_1"]
    assert found(tmp_path, text + "NCCL_CROSS_NIC: 0\n") == []
    assert found(tmp_path, text + "routed: [10.0.0.0/16]\n") == [], "the subnets have routes"
    assert found(tmp_path, text + "NCCL_IB_HCA: =mlx5_3\n") == [], "one rail"


def test_nccl_2318_neighbours_of_gins_ring_are_on_disjoint_rails(tmp_path: Path) -> None:
    text = "fabric: rail\nset: {planes: 4, spines: 4}\nuses: [gin]\n"
    (one,) = found(tmp_path, text)
    assert (one.pairs, one.uses) == (16, ("gin",)), "all 16 neighbours, of which 12 on one host"
    assert str(one.first[0][0]) == "host1:eth1 (rail 1, plane 1)" and one.remedy.startswith("NCCL_CROSS_NIC=0")
    assert found(tmp_path, text + "NCCL_CROSS_NIC: 0\n") == []
    assert found(tmp_path, "fabric: rail\nuses: [gin]\n") == [], "spines join the rails"


def test_vllm_44919_devices_of_two_groups_of_routes_need_a_list(tmp_path: Path) -> None:
    text = "uses: [transfer-engine]\nrails: [172.16.0.0/13, 172.24.0.0/13]\nhosts:\n"
    for host in (1, 2):
        rows = {name: f"172.{16 + 8 * (at % 2)}.{at}.{2 * host}/31" for at, name in enumerate(B300)}
        (tmp_path / f"node{host}.txt").write_text(ip_text(rows))
        devices = ", ".join(f"{name}: {name}" for name in rows)
        text += f"  node{host}: {{addr: node{host}.txt, devices: {{{devices}}}}}\n"
    (one,) = found(tmp_path, text)
    assert (one.pairs, one.uses) == (2 * 8 * 8, ("transfer-engine",))
    assert ends(one) == ["node1:mlx5_0 node2:mlx5_1", "node2:mlx5_0 node1:mlx5_1"]
    assert one.remedy == f"device_name: {','.join(B300[::2])}"
    assert found(tmp_path, f"{text}{one.remedy}\n") == []
    assert found(tmp_path, f"{text}device_name: {B300[0]},{B300[1]}\n")[0].pairs == 2


def test_crossing_rails_that_spines_join(tmp_path: Path) -> None:
    assert found(tmp_path, "fabric: rail\n") == []
    for settings, uses, remedy in (
        ("NCCL_CROSS_NIC: 1\n", "collectives", "NCCL_CROSS_NIC=0"),
        ("NCCL_PXN_DISABLE: 1\n", "send-recv", "NCCL_PXN_DISABLE=0"),
    ):
        (one,) = found(tmp_path, f"fabric: rail\n{settings}")
        assert (one.kind, one.uses, one.pairs, one.remedy) == ("cross rails", (uses,), 6 * 4 * 3, remedy)
        changed = remedy.replace("=", ": ")
        key = changed.partition(":")[0]
        kept = "" if settings.startswith(key) else settings
        assert found(tmp_path, f"fabric: rail\n{kept}{changed}\n") == []


def test_two_planes_are_told_from_rails(tmp_path: Path) -> None:
    """NICs 1 and 3 are in one plane: they reach each other, and cross rails."""
    one, two = found(tmp_path, "fabric: rail\nset: {planes: 2}\nNCCL_CROSS_NIC: 1\n")
    assert (one.kind, one.pairs) == ("cannot reach each other", 6 * 8)
    assert (two.kind, two.pairs) == ("cross rails", 6 * 4)


def test_nics_of_the_front_end_are_named_with_the_list_that_excludes_them(tmp_path: Path) -> None:
    (one,) = found(tmp_path, "fabric: frontend\n")
    assert one.remedy == "NCCL_IB_HCA=^=eth2" and one.pairs == 8 * 7
    assert found(tmp_path, "fabric: frontend\nNCCL_IB_HCA: ^=eth2\n") == []
    (one,) = found(tmp_path, "fabric: frontend\nNCCL_CROSS_NIC: 0\n")
    assert one.kind == "use the front-end" and ends(one)[0] == "host1:eth2 host2:eth2"


@pytest.mark.parametrize("fabric", ["rail", "rail: 2", "frontend", "dragonfly"])
def test_nics_reach_each_other_as_the_routes_of_the_fabric_say(tmp_path: Path, fabric: str) -> None:
    name, _, planes = fabric.partition(": ")
    overrides = [f"planes={planes}"] if planes else []
    (tmp_path / "r.yml").write_text(f"fabric: {name}\nset: {{{'planes: ' + planes if planes else ''}}}\n")
    built, nics = load_fabric(name, overrides=overrides).fabric, load_rails(str(tmp_path / "r.yml")).nics
    ports = {nic: built.by_name[nic.host].port(nic.hca) for nic in nics}
    for a, b in combinations(nics, 2):
        there = ports[b].address
        assert there is not None
        routes = built.expected_next_hops[ports[a].peer_node]
        reached = ports[a].peer_node == ports[b].peer_node or any(there.ip in prefix for prefix in routes)
        assert (a.part == b.part) == reached, (a, b)


def test_subnets_of_racks_and_of_pods_are_no_rails(tmp_path: Path) -> None:
    """One NIC a host, a subnet a rack; then two pods, each with a subnet for each number."""
    for own in (0, 1):  # whether a number has a subnet of its own
        for nics in (1, 2):
            rows = [
                ", ".join(
                    f"mlx5_{nic}: 10.0.{10 * (host // 3) + own * nic}.{8 * host + nic + 1}/24" for nic in range(nics)
                )
                for host in range(6)
            ]
            text = "hosts:\n" + "".join(f"  h{host}: {{addresses: {{{row}}}}}\n" for host, row in enumerate(rows))
            apart = found(tmp_path, text + "NCCL_CROSS_NIC: 0\n")[0]
            assert apart.pairs == 9 * nics and apart.remedy.startswith("routes between them")
            assert found(tmp_path, text + "routed: [10.0.0.0/8]\n") == []
            crossing = found(tmp_path, text + "routed: [10.0.0.0/8]\nNCCL_CROSS_NIC: 1\n")
            assert bool(crossing) == (own == 1 and nics == 2), "rails only where a number has a subnet"


def topology_job(folder: Path, second: dict[str, str]) -> str:
    """Two hosts of a dump whose device numbers cross: mlx5_0 is number 0, at 0000:13:00.0."""
    pci = {"ens3": "0000:03:00.0", "ens13": "0000:13:00.0"}
    (folder / "topo.xml").write_text(TOPOLOGY)
    (folder / "a.json").write_text(ip_json({"ens3": "10.0.1.1/24", "ens13": "10.0.0.1/24"}, pci))
    (folder / "b.json").write_text(ip_json(second, pci))
    return "hosts:\n  a: {addr: a.json, topo: topo.xml}\n  b: {addr: b.json, topo: topo.xml}\nNCCL_CROSS_NIC: 0\n"


def test_hcas_of_a_topology_are_found_by_their_pci_devices(tmp_path: Path) -> None:
    text = topology_job(tmp_path, {"ens3": "10.0.1.2/24", "ens13": "10.0.0.2/24"})
    assert found(tmp_path, text) == []
    file = str(tmp_path / "rails.yml")
    nics = load_rails(file).nics
    assert [Path(each).name for each in files_of_rails(file)] == ["rails.yml", "a.json", "topo.xml", "b.json"]
    assert [(nic.hca, nic.number, nic.where) for nic in nics[:2]] == [
        ("mlx5_0", 0, "10.0.0.0/24"), ("mlx5_1", 1, "10.0.1.0/24"),
    ]  # fmt: skip
    # Two cables, or two addresses, of b are swapped.
    (one,) = found(tmp_path, topology_job(tmp_path, {"ens3": "10.0.0.2/24", "ens13": "10.0.1.2/24"}))
    assert one.pairs == 2 and "b:mlx5_0 (10.0.1.0/24) to the rail of a:mlx5_0 (10.0.0.0/24)" in one.remedy


def test_a_host_with_fewer_nics_has_no_counterpart_for_send_recv(tmp_path: Path) -> None:
    hosts = "hosts:\n  host1: {}\n  host2: {addresses: {eth1: 10.0.0.3/31}}\n"
    address = load_fabric("rail").fabric.by_name["host2"].port("eth1").address
    text = f"fabric: rail\nNCCL_CROSS_NIC: 0\n{hosts.replace('10.0.0.3/31', str(address))}"
    (one,) = found(tmp_path, text)
    assert (one.kind, one.pairs, one.remedy) == ("have no counterpart", 3, "NCCL_IB_HCA==eth1")
    assert found(tmp_path, text + "NCCL_IB_HCA: =eth1\n") == []


def test_an_interface_that_is_down_is_left_out_and_said(tmp_path: Path) -> None:
    text = topology_job(tmp_path, {"ens3": "10.0.1.2/24", "ens13": "10.0.0.2/24"})
    rows = json.loads((tmp_path / "b.json").read_text())
    rows[2]["flags"] = ["NO-CARRIER", "UP"]
    (tmp_path / "b.json").write_text(json.dumps(rows))
    unaligned, uneven = found(tmp_path, text)
    assert ends(unaligned) == ["a:mlx5_0 b:mlx5_1"] and uneven.kind == "have no counterpart"
    assert "b:mlx5_0 is down" in to_text(load_rails(str(tmp_path / "rails.yml")), [unaligned])


def test_both_outputs_of_ip_are_read_alike(tmp_path: Path) -> None:
    rows = {"eth0": "10.0.0.1/24", "eth1": "10.0.1.1/24"}
    assert {**read_addresses(ip_text(rows), "x")}["eth1"] == read_addresses(ip_json(rows), "x")["eth1"]


def test_files_outside_its_directory_are_not_copied_to_another_machine(tmp_path: Path) -> None:
    (tmp_path / "rails.yml").write_text("hosts: {a: {addr: ../a.json}}\n")
    with pytest.raises(InputError, match="names files outside its directory"):
        files_of_rails(str(tmp_path / "rails.yml"))


def test_lists_of_hcas_are_read_as_nccl_reads_them() -> None:
    def used(text: str) -> list[str]:
        return [hca for hca in ("mlx5_0", "mlx5_1", "mlx5_10", "irdma0") if hca_filter(text)(hca, 1)]

    assert used("mlx5_1") == ["mlx5_1", "mlx5_10"] and used("=mlx5_1") == ["mlx5_1"]
    assert used("^mlx5_1,irdma") == ["mlx5_0"] and used("^=mlx5_1") == ["mlx5_0", "mlx5_10", "irdma0"]
    assert used("mlx5:2,irdma0:1") == ["irdma0"] and len(used("")) == 4


def test_the_verb_is_silent_on_a_sound_file_and_ends_with_1_on_a_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], answers: Answers
) -> None:
    import tasks

    file = tmp_path / "rails.yml"
    file.write_text("fabric: rail\n")
    assert main(vars(tasks), ["inv", "rails", str(file)]) == 0
    assert capsys.readouterr() == ("", "")
    file.write_text(rail_only(tmp_path))
    assert main(vars(tasks), ["inv", "rails", str(file)]) == 1
    text = capsys.readouterr().out
    assert main(vars(tasks), ["inv", "rails", str(file), "--format", "json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["findings"][0]["first"][0][1] == {"host": "node2", "hca": "mlx5_1", "where": "10.0.1.0/24"}
    answers({"the text": text})


def test_files_that_are_wrong_are_named_with_line_and_hint(tmp_path: Path, answers: Answers) -> None:
    (tmp_path / "good.json").write_text(ip_json({"ens1": "10.0.0.1/24"}))
    (tmp_path / "nomask.txt").write_text(ip_text({"ens1": "10.0.0.1"}))
    (tmp_path / "graph.xml").write_text('<graphs version="1"></graphs>')
    (tmp_path / "topo.xml").write_text(TOPOLOGY)
    (tmp_path / "list.json").write_text('[{"name": "ens1"}]')
    (tmp_path / "half.json").write_text('[{"ifname": "ens1",')
    answers(lambda text: found(tmp_path, text))
