"""A third opinion: Wireshark's dissector reads the same fields from our frames, and finds nothing to complain about."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from scapy.utils import wrpcap

from heddle.wire import layout as wire
from tests.unit.roce_samples import DQPN, SAMPLES, SAMPLES6, Sample

pytestmark = pytest.mark.needs("tshark")

FIELDS = (
    "infiniband.bth.opcode",
    "infiniband.bth.destqp",
    "infiniband.bth.psn",
    "infiniband.bth.a",
    "infiniband.bth.padcnt",
    "infiniband.reth.va",
    "infiniband.reth.r_key",
    "infiniband.reth.dmalen",
    "infiniband.immdt",
    "infiniband.aeth.syndrome",
    "infiniband.aeth.msn",
    "infiniband.invariant.crc",
    "ip.checksum.status",
    "_ws.malformed",
    "_ws.expert.message",
)
CHECKSUM_GOOD = {4: "1", 6: ""}  # IPv6 has none of its own
ALL = [*SAMPLES, *SAMPLES6]
# It takes any short SEND for NFS's RPC over RDMA, and reads beyond its end.
GUESSES_OFF = ("--disable-heuristic", "rpcrdma_infiniband")


def dissect(pcap: Path) -> list[dict[str, str]]:
    """What tshark says of each packet, by field; what it does not say is empty."""
    wanted = [word for field in FIELDS for word in ("-e", field)]
    # UDP checksum 0 in IPv6 is what it complains about by default; RFC 6935 lets tunnels do so, and NICs do.
    wishes = ("-o", "ip.check_checksum:TRUE", "-o", "udp.ignore_ipv6_zero_checksum:TRUE", *GUESSES_OFF)
    command = ["tshark", "-n", "-r", str(pcap), *wishes]
    output = ["-T", "fields", "-E", "separator=|", *wanted]
    done = subprocess.run([*command, *output], check=True, capture_output=True, text=True)
    return [dict(zip(FIELDS, line.split("|"), strict=True)) for line in done.stdout.splitlines()]


def number(text: str) -> int | None:
    """tshark's number in decimal or 0x...; None when it printed none."""
    return int(text, 0) if text else None


@pytest.fixture(scope="module")
def dissected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    pcap = tmp_path_factory.mktemp("roce") / "every kind.pcap"
    wrpcap(str(pcap), [sample.frame() for sample in ALL], linktype=1)
    return dict(zip((sample.name for sample in ALL), dissect(pcap), strict=True))


@pytest.mark.parametrize("sample", ALL, ids=lambda s: s.name)
def test_tshark_reads_the_same(dissected: dict[str, dict[str, str]], sample: Sample) -> None:
    said = dissected[sample.name]
    assert (said["_ws.malformed"], said["_ws.expert.message"]) == ("", "")
    assert said["ip.checksum.status"] == CHECKSUM_GOOD[sample.version]
    values = {name: number(said[f"infiniband.bth.{name}"]) for name in ("opcode", "destqp", "psn", "padcnt")}
    assert values == {"opcode": sample.opcode, "destqp": DQPN, "psn": sample.psn, "padcnt": -sample.size % 4}
    # tshark says 1 and 0 up to 4.0, True and False from 4.2 on.
    assert (said["infiniband.bth.a"] in ("1", "True")) == sample.ackreq
    va, rkey, dmalen = (number(said[f"infiniband.reth.{name}"]) for name in ("va", "r_key", "dmalen"))
    assert ((va, rkey, dmalen) if va is not None else None) == sample.reth
    # Bytes without 0x, and twice: the dissector hands them to two readers.
    assert (int(said["infiniband.immdt"].split(",")[0], 16) if said["infiniband.immdt"] else None) == sample.imm
    syndrome, msn = number(said["infiniband.aeth.syndrome"]), number(said["infiniband.aeth.msn"])
    assert ((syndrome, msn) if msn is not None else None) == sample.aeth
    # tshark shows the ICRC as it lies in the frame, and does not check it. Version 4.0 knows no CNP: only bytes there.
    shown = number(said["infiniband.invariant.crc"])
    assert shown == int.from_bytes(sample.frame()[-4:], "big") or (sample.opcode == wire.CNP and shown is None)
