"""The picture of a fabric: every node and link is there, and widths, colours and numbers follow what a run sent."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
from matplotlib.colors import to_hex

from heddle.base.problems import InputError
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.model import Fabric, Role
from heddle.fabric.shapes import build
from heddle.fabric.wiring import Link, Node, Port
from heddle.proof.linkuse import LinkUse, Mmr
from heddle.spec.shapes.clos import ClosSpec
from heddle.traffic.options import RunOptions
from heddle.views.fabricsvg import fabric_svg, legend_svg, style
from heddle.views.graph import drawing, kind_of, write_file
from heddle.views.linkloads import LinkLoad, amount, describe_run, link_loads, spreads
from heddle.views.loadscale import COLOURS, colormap
from heddle.views.picturelayout import PictureLayout
from tests.answers import Answers
from tests.marks import deep
from tests.unit.run_samples import header, sent

ROOT = Path(__file__).resolve().parents[2]
SVG = "{http://www.w3.org/2000/svg}"
FABRICS = {
    **{name: load_fabric(name).fabric for name in ("tiny", "demo", "zone")},
    "one": build(ClosSpec(name="one", racks=1, ctsw=1, hosts_per_rack=1)),
    "rails": build(ClosSpec(name="rails", racks=2, ctsw=3, hosts_per_rack=2, nics_per_host=4)),
    "dc": load_fabric("dc").fabric,
    "large": build(ClosSpec(name="large", racks=64, ctsw=8, hosts_per_rack=2)),
}


@dataclass(frozen=True)
class Stroke:
    """A half of a link as it is drawn: points of width at its node and in the middle, colour, and both ends.

    x and y grow to the right and down.
    """

    width: float
    narrow: float
    colour: str
    ends: tuple[float, float, float, float]

    @classmethod
    def of(cls, corners: str, colour: str) -> Stroke:
        """From the text of its four corners: two at the node, two in the middle."""
        numbers = [float(number) for number in re.findall(r"-?[0-9.]+", corners)]
        a, b, c, d = ((numbers[at], numbers[at + 1]) for at in range(0, 8, 2))
        ends = ((a[0] + b[0]) / 2, (a[1] + b[1]) / 2, (c[0] + d[0]) / 2, (c[1] + d[1]) / 2)
        return cls(math.dist(a, b), math.dist(c, d), colour, ends)


class Drawn:
    """An SVG taken apart by the ids that the picture gives its parts."""

    def __init__(self, svg: bytes) -> None:
        self.root = ET.fromstring(svg)
        self.groups = {each.get("id", ""): each for each in self.root.iter(f"{SVG}g")}
        self.texts = ["".join(each.itertext()) for each in self.root.iter(f"{SVG}text")]

    def named(self, prefix: str) -> set[str]:
        return {name.removeprefix(prefix) for name in self.groups if name.startswith(prefix)}

    def half(self, port: str) -> Stroke:
        path = self.groups[f"sent-{port}"].find(f"{SVG}path")
        assert path is not None
        style = dict(part.strip().split(": ") for part in path.get("style", "").split(";") if ":" in part)
        return Stroke.of(path.get("d", ""), style["fill"])


@cache
def plain(name: str) -> Drawn:
    """One of FABRICS without loads; tests only read it."""
    return Drawn(drawing("svg", FABRICS[name]))


def loads_of(fabric: Fabric, sent: dict[str, int]) -> list[LinkLoad]:
    """Loads where only these ports sent anything, in bytes."""
    rows = [(":".join(link.a), ":".join(link.b), link.rate_bps) for link in fabric.links]
    return [
        LinkLoad(a, b, sent.get(a, 0) // 100, sent.get(a, 0), sent.get(b, 0) // 100, sent.get(b, 0), 0.0, rate, 1.0)
        for a, b, rate in rows
    ]


@pytest.mark.parametrize("name", sorted(FABRICS))
def test_every_node_rack_and_port_is_drawn_once(name: str) -> None:
    fabric, drawn = FABRICS[name], plain(name)
    assert drawn.named("node-") == {node.name for node in fabric.nodes}
    assert drawn.named("sent-") == {port.ref for node in fabric.nodes for port in node.ports}
    assert drawn.named("rack-") == {str(node.group("rack")) for node in fabric.nodes if node.group("rack") is not None}
    assert name not in ("tiny", "demo", "zone") or {node.name for node in fabric.nodes} <= set(drawn.texts)


def test_a_user_supplied_lab_need_not_be_a_clos() -> None:
    """Two leaves in a rack, a host in none, a link between leaves, and no spine."""
    ends = [("lone", "eth1", "left", "eth1"), ("left", "eth2", "right", "eth1"), ("pair", "eth1", "left", "eth3")]
    ends.append(("pair", "eth2", "right", "eth2"))
    levels = {"left": 1, "right": 1, "lone": 0, "pair": 0}
    nodes = []
    for name, level in levels.items():
        ports = [(mine, other, theirs) for one, mine, other, theirs in ends if one == name]
        ports += [(mine, other, theirs) for other, theirs, one, mine in ends if one == name]
        made = tuple(Port(name, port, "02:00:00:00:00:01", peer, far, 10**6, 1500) for port, peer, far in ports)
        role = Role.SWITCH if level else Role.HOST
        nodes.append(Node(name, role, level, 1, made, () if name == "lone" else (("rack", 1),)))
    links = tuple(Link((a, x), (b, y), 10**6, 1500) for a, x, b, y in ends)
    fabric = replace(FABRICS["one"], name="own", nodes=tuple(nodes), links=links)
    drawn = Drawn(drawing("svg", fabric, loads_of(fabric, {"left:eth2": 500}), "a run"))
    assert drawn.named("node-") == set(levels)
    assert drawn.named("sent-") == {f"{one}:{port}" for a, x, b, y in ends for one, port in ((a, x), (b, y))}
    assert {"in no rack", "rack 1"} <= set(drawn.texts)
    assert any(text.startswith("RTSW to RTSW: busiest left:eth2 0%; max 500 B (left:eth2)") for text in drawn.texts)
    assert "CTSW" not in drawn.texts


def test_zones_are_framed_and_names_that_do_not_fit_are_left_out() -> None:
    fabric = FABRICS["dc"]
    drawn = Drawn(drawing("svg", fabric, loads_of(fabric, {"ctsw1:eth3": 700, "atsw2:eth1": 300}), "a run"))
    assert drawn.named("zone-") == {"1", "2"}
    assert {"zone 1", "zone 2", "ATSW", *(node.name for node in fabric.nodes)} <= set(drawn.texts)
    assert any("CTSW to ATSW: busiest ctsw1:eth3" in text and "max 700 B (ctsw1:eth3)" in text for text in drawn.texts)
    assert any("ATSW to CTSW: busiest atsw2:eth1" in text and "max 300 B (atsw2:eth1)" in text for text in drawn.texts)
    assert not plain("zone").named("zone-"), "one zone needs no frame"
    # Where names do not fit some of them stand for all.
    fabric = FABRICS["large"]
    texts = plain("large").texts
    hosts = [text for text in texts if re.fullmatch(r"host\d+", text)]
    assert 0 < len(hosts) < len(fabric.hosts) / 2
    assert "host1" in hosts
    assert {node.name for node in fabric.switches if node.level == 2} <= set(texts)


@pytest.mark.parametrize("name", sorted(FABRICS))
def test_tiers_are_rows_and_links_do_not_lie_on_each_other(name: str) -> None:
    fabric, drawn = FABRICS[name], plain(name)
    starts: dict[int, set[float]] = {}
    ends = []
    for node in fabric.nodes:
        for port in node.ports:
            x1, y1, x2, y2 = drawn.half(port.ref).ends
            ends.append((x1, y1, x2, y2))
            if fabric.by_name[port.peer_node].role is Role.SWITCH:
                starts.setdefault(node.level, set()).add(round(y1, 3))
    middle = 2 if 3 in starts else 1  # links leave it upwards and downwards
    assert all(len(heights) == 1 for level, heights in starts.items() if level not in (1, middle))
    assert len(ends) == len(set(ends)), "several links of one host and switch lie side by side"


def test_halves_of_a_link_are_as_wide_as_what_each_end_sent_and_as_dark_as_its_time() -> None:
    fabric = FABRICS["tiny"]
    sent = {"rtsw1:eth1": 12_500_000, "ctsw1:eth1": 3_125_000, "rtsw1:eth2": 6_250_000}  # 100 %, 25 % and 50 %
    drawn = Drawn(drawing("svg", fabric, loads_of(fabric, sent), "a run"))
    most, half, quarter, none = (drawn.half(port) for port in ("rtsw1:eth1", "rtsw1:eth2", "ctsw1:eth1", "ctsw2:eth1"))
    assert most.width > half.width > quarter.width > none.width > 0
    assert half.width - none.width == pytest.approx((most.width - none.width) / 2, rel=1e-3)
    assert len({each.colour for each in (most, half, quarter, none)}) == 4
    assert brightness(most.colour) < brightness(half.colour) < brightness(quarter.colour)
    assert most.ends[2:] == pytest.approx(quarter.ends[2:], abs=1e-3), "the halves meet in the middle"
    # There they are as wide as an idle link, so the link is not cut: the wide end of a half is at its node.
    assert {round(each.narrow, 2) for each in (most, half, quarter, none)} == {round(none.width, 2)}
    # A slow link is darker than a fast one with more bytes: The use of a link is time, not bytes: 2 MB on 25 Mb/s take
    # longer than 4 MB on 100 Mb/s.
    loads = [
        replace(load, rate_bps=25_000_000) if "rtsw1:eth2" in (load.a, load.b) else load
        for load in loads_of(fabric, {"rtsw1:eth1": 4_000_000, "rtsw1:eth2": 2_000_000})
    ]
    drawn = Drawn(drawing("svg", fabric, loads, "a run"))
    fast, slow = drawn.half("rtsw1:eth1"), drawn.half("rtsw1:eth2")
    assert slow.width > fast.width and brightness(slow.colour) < brightness(fast.colour)
    said = next(text for text in drawn.texts if text.startswith("RTSW to CTSW: "))
    assert said.startswith("RTSW to CTSW: busiest rtsw1:eth2 64%; max 4 MB (rtsw1:eth1), mean 1.5 MB")
    row = next(load.to_json() for load in loads if load.a == "rtsw1:eth2")
    assert (row["a_seconds"], row["utilisation"], row["b_utilisation"]) == (0.64, 0.64, 0.0)


def test_every_drawing_has_the_same_scale_and_the_same_places() -> None:
    """File, report and heat map: colours by share of line rate, and links of one layout."""
    fabric = FABRICS["tiny"]
    full = 12_500_000  # bytes in a second at 100 Mb/s
    shares = {"rtsw1:eth1": 0.04, "rtsw1:eth2": 0.55, "rtsw2:eth1": 1.0, "rtsw2:eth2": 1.2}
    steps = {"rtsw1:eth1": "u0", "rtsw1:eth2": "u5", "rtsw2:eth1": "u9", "rtsw2:eth2": "over", "ctsw1:eth1": "idle"}
    loads = loads_of(fabric, {port: round(share * full) for port, share in shares.items()})
    file, layout = Drawn(drawing("svg", fabric, loads, "a run")), PictureLayout(fabric)
    page = ET.fromstring(fabric_svg(layout, loads, title="x"))
    halves = {each.get("data-port", ""): each for each in page.iter(f"{SVG}polygon") if "half" in each.get("class", "")}
    css = {dark: style(dark) for dark in ("", ":root[data-theme='dark']")}
    for port, step in steps.items():
        light, dark = COLOURS[step]
        assert file.half(port).colour == light
        assert halves[port].get("class") == f"half {step}"
        assert all(text.count(f"--load-{step}: {each};") == 1 for text in css.values() for each in (light, dark))
    # A run of unknown time has no shares.
    unknown = Drawn(drawing("svg", fabric, [replace(load, run_s=None) for load in loads], "a run"))
    assert {unknown.half(port).colour for port in steps} == {COLOURS["idle"][0]}
    # Places: an inch is 72 units of matplotlib's SVG, and 100 of a page's; both count from their own corner.
    assert halves.keys() == file.named("sent-")
    ends = {port: (file.half(port).ends, Stroke.of(each.get("points", ""), "").ends) for port, each in halves.items()}
    files, pages = ends["rtsw1:eth1"]
    for one, other in ends.values():
        for at in range(4):
            assert (one[at] - files[at % 2]) / 72 == pytest.approx((other[at] - pages[at % 2]) / 100, abs=0.01)
    # The legend has the same words everywhere.
    words = ["".join(each.itertext()) for each in ET.fromstring(legend_svg()).iter(f"{SVG}text")]
    assert words == ["load: share of line rate", "0 %", "50 %", "100 %", "above 100 %", "nothing sent, or not known"]
    assert set(words) <= set(file.texts)
    heat = colormap()
    assert all(to_hex(heat(share)) == COLOURS[steps[port]][0] for port, share in shares.items())


def test_the_legend_has_the_run_and_the_numbers(answers: Answers) -> None:
    fabric = FABRICS["tiny"]
    sent = {"rtsw1:eth1": 4_000_000, "rtsw2:eth2": 2_000_000, "host1:eth1": 500}
    texts = Drawn(drawing("svg", fabric, loads_of(fabric, sent), "ring all-reduce of 64 KiB")).texts
    answers({"texts of a run of one second": "\n".join(texts)})


def test_without_a_run_the_picture_says_so() -> None:
    drawn = plain("tiny")
    assert "no run yet: links have no load" in drawn.texts
    assert drawn.named("spread-") == set()
    assert len({drawn.half(port).colour for port in drawn.named("sent-")}) == 1


@pytest.mark.parametrize("kind", ["svg", deep("png")])
def test_the_same_input_gives_the_same_bytes_in_another_process(kind: str, tmp_path: Path) -> None:
    code = (
        "import sys; from heddle.views.graph import drawing, kind_of; from heddle.fabric.fabricfile import load_fabric;"
        "from heddle.fabric.shapes import build;"
        "sys.stdout.buffer.write(drawing(kind_of(sys.argv[1]), load_fabric('tiny').fabric, (), 'a run'))"
    )
    argv = [sys.executable, "-c", code, kind]
    one = drawing(kind_of(kind), FABRICS["tiny"], (), "a run")
    assert one == subprocess.run(argv, cwd=ROOT, capture_output=True, check=True).stdout
    assert one.startswith({"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}[kind])
    assert len(one) > 5_000


def test_loads_have_both_directions_and_the_mmr_is_that_of_paths() -> None:
    fabric = FABRICS["rails"]
    flows = [
        sent(first_hop="rtsw1:eth5", packets=7, size=900),
        sent(first_hop="rtsw1:eth5", packets=1, size=100),
    ]
    loads = {load.a: load for load in link_loads(fabric, flows, counted(fabric))}
    nic = fabric.by_name["rtsw1"].port("eth5").peer_ref
    assert (loads[nic].b, loads[nic].a_packets, loads[nic].a_bytes) == ("rtsw1:eth5", 8, 1000)
    assert loads[nic].b_bytes == next(use.bytes for use in counted(fabric) if use.port == "rtsw1:eth5")
    assert loads[nic].to_json()["bytes"] == loads[nic].a_bytes + loads[nic].b_bytes
    fabric_links = [load.share for load in loads.values() if not load.a.startswith("host")]
    host_links = [load.share for load in loads.values() if load.a.startswith("host")]
    assert sum(fabric_links) == pytest.approx(1)
    assert sum(host_links) == pytest.approx(1)
    # The mmr in the legend is that of paths.
    fabric = FABRICS["demo"]
    uses = counted(fabric)
    spread = next(s for s in spreads(fabric, link_loads(fabric, [], uses)) if s.what == "RTSW to CTSW")
    mmr = Mmr.of([use for use in uses if use.uplink]).bytes
    assert mmr is not None
    assert spread.most / spread.mean == pytest.approx(mmr, abs=1e-4)


def test_a_run_is_described_in_one_line_with_short_amounts() -> None:
    run = header(RunOptions(sizes=(8, 65536), ranks=2))
    text = describe_run(run)
    assert text == (
        "ring all-reduce of 8 B to 64 KiB on 2 ranks, 1 QP per connection, ECMP e-ecmp, 5 iterations, 1 warm-up"
    )
    split = describe_run(replace(run, ranks=run.ranks * 2, communicators=((0, 2), (1, 3))))
    assert "on 4 ranks in 2 communicators, 1 QP" in split
    # Amounts are short.
    assert [amount(n) for n in (0, 12, 1500, 450_792, 1_200_000, 2.5e12)] == [
        "0", "12 B", "1.5 kB", "451 kB", "1.2 MB", "2500 GB",
    ]  # fmt: skip


def test_kinds_follow_the_file_and_wrong_ones_are_the_users_mistake(tmp_path: Path) -> None:
    assert [kind_of(None, file) for file in (None, "a", "a.b/c.png", "x.pdf", "x.dot")] == [
        "svg", "svg", "png", "pdf", "dot",
    ]  # fmt: skip
    assert kind_of("mermaid", "notes.md") == "mermaid"
    with pytest.raises(InputError, match=r"--out x\.txt has an unknown suffix\n.*\.dot, \.svg, \.png, \.pdf"):
        kind_of(None, "x.txt")
    with pytest.raises(InputError, match=r"--out x\.png has the suffix of another kind than --kind svg"):
        kind_of("svg", "x.png")
    # Kinds that are none and places that are none are the users mistake.
    with pytest.raises(InputError, match="did you mean png"):
        kind_of("pgn")
    with pytest.raises(InputError, match="is a directory"):
        write_file(tmp_path, b"", "x")
    with pytest.raises(InputError, match="is in a directory that does not exist"):
        write_file(tmp_path / "none" / "x.svg", b"", "none/x.svg")


def test_the_verb_writes_the_picture_and_says_where(tmp_path: Path) -> None:
    argv = [sys.executable, str(ROOT / "tasks.py"), "graph", "--fabric", "tiny", "--format", "json"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["graph"] == "tiny.svg"
    assert data["kind"] == "svg"
    assert {
        "a": "host1:eth1",
        "b": "rtsw1:eth3",
        "packets": None,
        "bytes": None,
        "share": None,
        "utilisation": None,
    } in data["links"]
    assert Drawn((tmp_path / "tiny.svg").read_bytes()).named("node-") == {n.name for n in FABRICS["tiny"].nodes}


def counted(fabric: Fabric) -> Sequence[LinkUse]:
    """Uneven bytes at every port of every switch."""
    ports = [(s, p) for s in fabric.switches for p in s.ports]
    return [
        LinkUse(p.ref, s.level == 1 and fabric.by_name[p.peer_node].role is Role.SWITCH, n, 100 * n * n, 1)
        for n, (s, p) in enumerate(ports)
    ]


def brightness(colour: str) -> int:
    return sum(int(colour[at : at + 2], 16) for at in (1, 3, 5))
