"""Fabrics in formats of simulators: what is written is read back as the same fabric; wrong files name their line."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

import tasks
from heddle.base.problems import InputError
from heddle.cli.program import main
from heddle.fabric.fabricfile import load_fabric
from heddle.render.render import TOPOLOGIES
from heddle_plugins.readers.fabrics.importing import READERS, ImportedFabric, import_fabric
from tests.answers import Answers
from tests.machine import patience

# Of presets: what is set. htsim has no rails, losses or exceptions, and a whole number of links down for one up.
LOSSY = "link.loss={host: 1/256, fabric: 0}"
FABRICS = {
    "zone": [],
    "zone ": ["link.exceptions={host3: 10mbit, 'rtsw2:eth3': 20mbit}"],
    "demo": ["nics_per_host=2", "link.delay={host: 1us, fabric: 2us}"],
    "demo ": ["link.exceptions.ctsw2=10mbit"],
    "tiny": [LOSSY],
    "tiny ": ["racks=1", "ctsw=3"],
    "tiny  ": ["link.loss={host: 1/3, fabric: 1e-9}"],
    "dc": ["link.delay=shape"],
    "dc ": ["ctsw=1", "hosts_per_rack=6", "atsw=1", "oversubscription=2", "link.delay=500ns"],
    "rail": [],
    "rail ": ["planes=2", "link.fabric=25mbit", "link.delay=shape"],
    "rail  ": ["nics_per_host=1", "spines=3"],
    "fattree": ["hosts_per_edge=4", "nics_per_host=2", "link.delay=1us"],
    "fattree ": ["radix=6", "link.delay=shape", "link.exceptions={'agg4:eth5': 10mbit, edge2: 25mbit}"],
}
NOT_IN_HTSIM = {"zone", "zone ", "rail", "rail ", "rail  ", "dc", "tiny", "tiny ", "tiny  ", "demo ", "fattree "}
NOT_IN_INFRAGRAPH = {"tiny", "tiny  "}


@dataclass(frozen=True)
class Tool:
    """Files of a test's directory."""

    place: Path

    def read(self, kind: str, text: str, *settings: str, onto: str | None = None) -> ImportedFabric:
        (self.place / "f.txt").write_text(text)
        return import_fabric(kind, str(self.place / "f.txt"), onto, settings)

    def refused(self, kind: str, text: str, *settings: str) -> str:
        with pytest.raises(InputError) as error:
            self.read(kind, text, *settings)
        return str(error.value).replace(f"{self.place}/", "")


@pytest.fixture
def tool(tmp_path: Path) -> Tool:
    return Tool(tmp_path)


def written(kind: str, preset: str, settings: Sequence[str]) -> str:
    return TOPOLOGIES[kind](load_fabric(preset.strip(), overrides=settings))[1]


@pytest.mark.parametrize("preset", FABRICS)
@pytest.mark.parametrize("kind", READERS)
def test_a_fabric_that_was_written_is_read_as_the_same(kind: str, preset: str, tool: Tool) -> None:
    if preset in {"htsim": NOT_IN_HTSIM, "infragraph": NOT_IN_INFRAGRAPH}.get(kind, ()):
        with pytest.raises(InputError):
            written(kind, preset, FABRICS[preset])
        return
    before = load_fabric(preset.strip(), overrides=FABRICS[preset]).fabric
    after = tool.read(kind, written(kind, preset, FABRICS[preset])).fabric
    assert (after.name, after.links, after.policy.delays, after.policy.k) == (
        before.name, before.links, before.policy.delays, before.policy.k,
    )  # fmt: skip
    assert after == before


def test_the_verbs_write_a_file_and_make_a_fabric_file_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def inv(*words: str) -> tuple[int, str]:
        code = main(vars(tasks), ["inv", *words])
        found = capsys.readouterr()
        return code, found.out + found.err

    monkeypatch.chdir(tmp_path)
    settings = ["--set", "link.delay=1us"]
    assert inv("render", "demo", "--kind", "hpcc", *settings) == (0, "wrote out/topology.txt\n")
    assert inv("import", "hpcc", "out/topology.txt", "--out", "mine.yml") == (
        0,
        "wrote mine.yml: run ./inv up mine.yml\n",
    )
    assert load_fabric("mine.yml").fabric == load_fabric("demo", overrides=settings[1:]).fabric
    code, text = inv("import", "hpcc", "out/topology.txt", "--set", "name=other")
    assert code == 0 and text.startswith(
        "# ./inv import hpcc out/topology.txt --set name=other\nname: other\nshape: clos\n"
    )
    assert inv("render", "demo", "--kind", "hpc") == (2, "--kind hpc is not a format\n  hint: did you mean hpcc?\n")
    assert inv("render", "demo", "--kind", "hpcc", "--dialect", "frr")[0] == 2
    assert inv("import", "cisco", "out/topology.txt")[0] == 2


def test_a_few_links_have_another_rate_and_many_do_not(tool: Tool) -> None:
    def text(slow: int) -> str:
        rates = ["50Gbps"] * slow + ["100Gbps"] * (600 - slow)
        links = [f"{host} {600 + host // 300} {rate} 1us 0" for host, rate in enumerate(rates)]
        return "\n".join(["603 3 602", "600 601 602", *links, "600 602 1Tbps 1us 0", "601 602 1Tbps 1us 0"])

    found = tool.read("hpcc", text(2), "addressing.rack_prefix=22").fabric
    assert [nic.rate_bps * found.policy.k for nic in found.nics[:3]] == [50 * 10**9, 50 * 10**9, 100 * 10**9]
    assert "f.txt:3  the link of node 0 and node 600 has 50gbit, and 257 links" in tool.refused("hpcc", text(257))


def test_keys_that_a_format_does_not_have_come_from_the_other_fabric(tool: Tool) -> None:
    text = written("hpcc", "tiny", [])
    found = tool.read("hpcc", text, "link.host=20mbit", onto="topologies/examples/no-pfc.yml").fabric
    assert found.policy.queues == load_fabric("topologies/examples/no-pfc.yml").fabric.policy.queues
    assert {nic.rate_bps for nic in found.nics} == {20 * 10**6}


def test_a_node_is_a_nic_and_so_many_in_a_row_are_a_host(tool: Tool) -> None:
    lines = written("hpcc", "rail", []).splitlines()
    assert lines.pop().startswith("# heddle:")
    text = "\n".join(lines)
    assert tool.read("hpcc", text).data["shape"] == "clos"
    found = tool.read("hpcc", text, "nics_per_host=4").fabric
    assert found.links == load_fabric("rail").fabric.links


def test_groups_of_a_fat_tree_may_be_in_any_order_and_must_be_groups(tool: Tool) -> None:
    text = written("hpcc", "fattree", [])
    turned = {"24": "25", "25": "24"}  # the aggregation switches of a pod change places
    head, switches, *links = text.splitlines()
    swapped = [" ".join(turned.get(word, word) for word in line.split()) if ":" not in line else line for line in links]
    found = tool.read("hpcc", "\n".join([head, switches, *swapped])).fabric
    assert found == load_fabric("fattree").fabric
    why = tool.refused("hpcc", "\n".join([head, switches, *(line.replace("24 32 ", "24 34 ") for line in links)]))
    assert "has no link to node" in why


def test_a_node_with_two_links_is_a_host_with_two_nics(tool: Tool) -> None:
    links = [f"{host} {4 + nic} 100Gbps 1us 0" for host in range(4) for nic in range(2)]
    links += [f"{leaf} 6 200Gbps 1us 0" for leaf in (4, 5)]
    found = tool.read("hpcc", "\n".join(["7 3 10", "4 5 6", *links]))
    assert found.data["shape"] == "rail" and found.data["nics_per_host"] == 2 and len(found.fabric.nics) == 8
    assert found.notes == ("each node has 2 links, which are 2 NICs: each carries a rank",)


def test_the_latency_of_switches_is_in_that_of_links(tool: Tool) -> None:
    text = written("htsim", "demo", ["link.delay=1us"]).replace("Switch_Latency_ns 0", "Switch_Latency_ns 300")
    assert tool.read("htsim", text).fabric.policy.delays == (1150, 1300, 1300)  # as 2 x 1 us + 3 of 300 ns a way


SWITCHES = """
devices:
- name: box
  components: [{name: card, count: 2, choice: device}, {name: gpu, count: 4, choice: xpu}]
- name: card
  components: [{name: plug, count: 2, choice: port}]
- name: sw
  components: [{name: port, count: 8, choice: port}]
links:
- {name: a, physical: {bandwidth: {choice: gigabytes_per_second, gigabytes_per_second: 12.5}}}
instances:
- {name: server, device: box, count: 4}
- {name: leaf, device: sw, count: 2}
- {name: spine, device: sw, count: 3}
edges:
- ep1: {instance: "server[0:2]", component: card.plug}
  ep2: {instance: "leaf[0]", component: port}
  scheme: one2one
  link: a
- ep1: {instance: "leaf[1]", component: "port[0:8]"}
  ep2: {instance: "server[2:4]", component: "card[0:2].plug[0:2]"}
  link: a
- ep1: {instance: leaf, component: "port[0]"}
  ep2: {instance: "spine[0:3:2]", component: "port[1]"}
  scheme: many2many
  link: a
"""


def test_an_infragraph_of_devices_in_devices(tool: Tool) -> None:
    found = tool.read("infragraph", SWITCHES)
    sizes = {key: found.data[key] for key in ("shape", "racks", "ctsw", "hosts_per_rack", "nics_per_host", "scale")}
    assert sizes == {"shape": "clos", "racks": 2, "ctsw": 2, "hosts_per_rack": 2, "nics_per_host": 4, "scale": 2000}
    assert found.notes[0] == "1 instances without an edge are left out"


def test_the_network_of_astra_sim_has_a_dimension_for_each_tier() -> None:
    settings = ["hosts_per_rack=4", "link.delay=shape"]
    found = yaml.safe_load(written("astra-sim", "dc", settings))
    # In 50 GB/s of a NIC: 4 NICs share 2 uplinks of 50, and 16 NICs share 8 links of 20 to the ATSWs.
    assert found.pop("bandwidth") == pytest.approx([each * 10**9 / 2**30 for each in (50, 25, 10)])
    assert found == {"topology": ["Switch"] * 3, "npus_count": [4, 2, 2], "latency": [500, 1500, 4500]}
    assert yaml.safe_load(written("astra-sim", "fattree", ["hosts_per_edge=3"]))["npus_count"] == [3, 2, 4]
    with pytest.raises(InputError, match="different planes"):
        written("astra-sim", "rail", ["planes=2"])
    assert yaml.safe_load(written("astra-sim", "rail", []))["npus_count"] == [4, 2, 2]


def test_a_million_links_are_read_in_bounded_time(tool: Tool) -> None:
    nics, leaves, spines = 65_536 - 64, 1_023, 128
    first = nics
    rows = [f"{nic} {first + nic // 64} 400Gbps 1us 0\n" for nic in range(nics)]
    rows += [
        f"{first + leaf} {first + leaves + spine} 400Gbps 1us 0\n" for leaf in range(leaves) for spine in range(spines)
    ]
    rows += [rows[-1]] * (1_000_000 - len(rows))
    head = f"{nics + leaves + spines} {leaves + spines} {len(rows)}\n"
    text = head + " ".join(map(str, range(first, first + leaves + spines))) + "\n" + "".join(rows)
    before = time.process_time()
    why = tool.refused("hpcc", text)
    assert "f.txt:196419  the link of node 66494 and node 66622 is there twice, first at f.txt:196418" in why
    assert time.process_time() - before < patience(30)


def test_files_that_do_not_fit_name_the_line(tool: Tool, answers: Answers) -> None:
    texts = {
        "clos": ("hpcc", written("hpcc", "demo", ["hosts_per_rack=2", "link.delay=1us"])),
        "zones": ("hpcc", written("hpcc", "dc", ["hosts_per_rack=1"])),
        "rail": ("simai", written("simai", "rail", ["planes=2"])),
        "topo": ("htsim", written("htsim", "demo", ["link.delay=1us"])),
        "zonestopo": ("htsim", written("htsim", "dc ", FABRICS["dc "])),
        "infragraph": ("infragraph", SWITCHES),
    }

    def error(name: str, old: str, new: str, *settings: str) -> str:
        kind, text = texts[name]
        assert old in text or not old, old
        return tool.refused(kind, text.replace(old, new, 1) if old else new, *settings)

    answers(error)


def test_formats_refuse_what_they_cannot_express(answers: Answers) -> None:
    def error(kind: str, fabric: str, *settings: Any) -> str:
        with pytest.raises(InputError) as found:
            written(kind, fabric, settings)
        return str(found.value)

    answers(error)
