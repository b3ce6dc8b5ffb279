"""`capture --live` on a running lab: its notes are those of `paths` and `queues`; and tshark agrees with `--read`."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from heddle.base.process import run
from heddle.cli.capture_live import LiveNotes
from heddle.lab.lab import Lab
from heddle.lab.rehash import set_hashing
from heddle.runs.store import paths_of
from heddle.switch.queues.cells import LabQueues
from heddle.switch.queues.classes import row
from heddle.wire import layout as wire
from heddle.wire.dissect import dissect
from heddle.wire.pcapng import Frame
from tests.machine import patience, slower, until
from tests.netns.test_capture import INV, ROOT, inv_capture
from tests.typed import typed
from tests.unit.roce_samples import SAMPLES

pytestmark = pytest.mark.needs("tcpdump", "tshark")

KEYS = ("src", "dst", "qpn", "sport")


def incast(lab: Lab) -> None:
    words = ["run", "--lab", lab.name, "--collective", "incast", "--size", "256K", "--iters", "2", "--qps", "2"]
    subprocess.run([*INV, *words], cwd=ROOT, check=True, capture_output=True, timeout=patience(120))


@pytest.fixture(scope="module")
def tiny_overrides() -> Sequence[str]:
    """Rates at which an incast waits on every machine."""
    return slower(100_000_000)


def test_notes_are_those_of_paths_and_the_file_is_read_as_tshark_reads_it(tiny: Lab, tmp_path: Path) -> None:
    path, live = tmp_path / "two switches.pcapng", dict[str, Any]()
    words = ["--live", "--out", str(path), "--seconds", f"{patience(60):g}", "--format", "json"]

    def waits() -> bool:
        """A busy machine may read a packet's queue when it is empty again: then another incast."""
        with inv_capture(tiny, "rtsw1,ctsw1", *words) as proc:
            incast(tiny)
            proc.send_signal(2)
            live.update(json.loads(proc.communicate(timeout=patience(60))[0]))
        data = (each for each in live["frames"] if each["kind"] == "RoCE data" and each["port"] == "rtsw1:eth3")
        return any(each["queue_bytes"] for each in data)

    until(waits, 120)
    proven = {(p.flow.src_ip, p.flow.dst_ip, p.flow.qpn, p.flow.sport): p.measured for p in paths_of(tiny).flows}
    roce = [frame for frame in live["frames"] if frame["kind"].startswith("RoCE")]
    frames = [frame for frame in roce if frame["kind"] == "RoCE data"]
    noted = {tuple(frame[key] for key in KEYS): tuple(frame["path"]) for frame in frames}
    assert noted == {key: path for key, path in proven.items() if key in noted} and len(noted) > 1
    assert all(frame["on_path"] for frame in roce)
    assert {(frame["kind"], frame["class"]) for frame in roce} >= {("RoCE data", 3), ("RoCE ACK", 6)}

    done = typed("capture", "--read", str(path), "--format", "json")
    data = json.loads(done.stdout)
    names = ("frame.interface_name", "ip.src", "ip.dst", "infiniband.bth.destqp", "infiniband.bth.opcode",
             "ip.dsfield.ecn", "udp.dstport", "infiniband.bth.psn", "_ws.malformed")  # fmt: skip
    wanted = [word for name in names for word in ("-e", name)]
    said = run(["tshark", "-n", "-r", str(path), "--disable-heuristic", "rpcrdma_infiniband", "-T", "fields",
                "-E", "separator=|", *wanted])  # fmt: skip
    rows = [line.split("|") for line in said.out.splitlines()]
    theirs = [each for each in rows if each[6] == "4791"]
    assert data["packets"] == live["packets"] == len(rows) and not any(each[8] for each in theirs)
    assert data["opcodes"] == Counter(wire.OPCODE_NAMES[int(each[4])] for each in theirs)
    assert data["ecn"].get("ce", 0) == sum(each[5] == "3" for each in theirs)
    assert data["icrc"]["right"] == len(theirs), data["icrc"]
    psns: dict[tuple[str, ...], list[int]] = {}
    for each in theirs:
        if int(each[4]) != wire.ACK:
            psns.setdefault((each[0], each[1], each[2], each[3]), []).append(int(each[7]))
    assert all((b - a) % (1 << 24) == 1 for some in psns.values() for a, b in pairwise(some)), "no PSN is missing"
    ours = Counter({(qp["port"], qp["src"], qp["dst"], qp["qpn"]): qp["packets"] for qp in data["qps"]})
    assert ours == Counter((each[0], each[1], each[2], int(each[3], 0)) for each in theirs)


def frame_of(lab: Lab, port: str, src: str, dst: str, *, outgoing: bool) -> Frame:
    """A frame of a sample with the addresses of two hosts of the lab."""
    data = bytearray(SAMPLES[0].frame())
    for at, name in ((26, src), (30, dst)):
        address = lab.fabric.by_name[name].ports[0].address
        assert address is not None
        data[at : at + 4] = address.ip.packed
    return Frame(port, 0, 0.0, outgoing, len(data), bytes(data))


def test_a_packet_off_its_path_and_a_paused_queue_are_said(tiny: Lab) -> None:
    with LiveNotes(tiny) as notes, LabQueues.pinned(tiny.fabric) as queues:
        frame = frame_of(tiny, "rtsw1:eth1", "host1", "host3", outgoing=True)
        what = dissect(frame.data)
        notes.arrived(frame, what)
        path = notes.of(frame, what).path
        assert path[0] in ("rtsw1:eth1", "rtsw1:eth2") and len(path) == 3
        wrong = "rtsw1:eth2" if path[0] == "rtsw1:eth1" else "rtsw1:eth1"
        stray = frame_of(tiny, wrong, "host1", "host3", outgoing=True)
        cell = queues.agent[row(queues.ids["rtsw1", wrong.partition(":")[2]], 3)]
        before = int(cell["closed_since_ns"])
        cell["closed_since_ns"] = 1
        try:
            notes.arrived(stray, what)
        finally:
            cell["closed_since_ns"] = before
        found = notes.of(stray, what)
        assert (found.path, found.on_path, found.paused) == (path, False, True)
        assert found.text() == f"queue[3] 0  PAUSED  path {' '.join(path)}  OFF ITS PATH"
        assert notes.of(stray, what).text() == "", "a frame is asked about once"
        assert notes.troubles == []


def test_notes_follow_a_change_of_hashing(tiny: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heddle.cli.capture_live._REFRESH_S", 0.0)
    monkeypatch.setattr("heddle.cli.capture_live._SHARE", 0)
    frame = frame_of(tiny, "rtsw1:eth1", "host1", "host3", outgoing=True)
    what = dissect(frame.data)
    mode = tiny.fabric.policy.routing.ecmp
    with LiveNotes(tiny) as notes:
        notes.arrived(frame, what)
        before = notes.of(frame, what).path
        try:
            set_hashing(tiny, "spray")
            notes.arrived(frame, what)
            after = notes.of(frame, what)
        finally:
            set_hashing(tiny, mode)
    assert len(before) == 3 and "{" not in before[0]
    assert after.path[0] == "rtsw1:{eth1,eth2}" and after.on_path
