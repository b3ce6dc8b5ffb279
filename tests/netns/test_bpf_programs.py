"""Every BPF program by BPF_PROG_TEST_RUN: no traffic, no namespace."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

import pytest

from heddle.base.problems import MachineError
from heddle.kernel.libbpf import Map, Object, Program, ensure_bpffs, loaded, run_on
from heddle.switch.counters import StackKey
from heddle.traffic.flow import Flow
from tests.netns.static_fabric import roce_frame
from tests.objects import bpf as build

TEST_PORT = 0  # a test run has no filter, and so no classid
UNSPEC = 0xFFFFFFFF  # TC_ACT_UNSPEC, -1: what else is attached goes on
FLOW = Flow("host1", "host2", "10.0.0.1", "10.0.1.1", 51234, 0xABCDEF, "rtsw1:eth5")
FLOW6 = replace(FLOW, src_ip="fd00::1", dst_ip="fd00:0:0:1::1")

Change = Callable[[bytes], bytes]
NOT_ROCE: dict[str, Change] = {
    "another destination port": lambda f: f[:36] + struct.pack("!H", 4790) + f[38:],
    "TCP": lambda f: f[:23] + b"\x06" + f[24:],
    "the first fragment": lambda f: f[:20] + b"\x20\x00" + f[22:],
    "a later fragment": lambda f: f[:20] + b"\x00\x10" + f[22:],
    "IPv6": lambda f: f[:12] + b"\x86\xdd\x60" + f[15:],
    "ARP": lambda f: f[:12] + b"\x08\x06" + f[14:],
    "IP version 5": lambda f: f[:14] + b"\x55" + f[15:],
    "a header length of 4 words": lambda f: f[:14] + b"\x44" + f[15:],
    "cut within BTH": lambda f: f[:50],
}


@pytest.fixture(scope="module", params=["committed", "rebuilt"])
def objects(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The committed objects, and those that the clang of this machine makes: both must behave alike."""
    ensure_bpffs()
    if request.param == "committed":
        return build.HERE
    if shutil.which("clang") is None:
        pytest.skip("needs clang: ./inv test --build installs it")
    out = tmp_path_factory.mktemp("bpf")
    for name in build.PROGRAMS:
        build.build(name, out / f"{name}.o")
    return out


def counted_ports(made: Object) -> Callable[[], tuple[int, ...]]:
    """Reads a port's packets, bytes, the same of RoCEv2, and misses: sums over all CPUs."""
    ports = made.map("ports", 4, 40, per_cpu=True)

    def read() -> tuple[int, ...]:
        cells = struct.iter_unpack("=5Q", ports.lookup(struct.pack("=I", TEST_PORT)) or b"")
        return tuple(map(sum, zip(*cells, strict=True)))

    return read


def test_counting_is_by_flow_and_port_and_tells_roce_from_the_rest(objects: Path) -> None:
    frame = roce_frame(FLOW, payload=100)
    with loaded(objects / "count.o") as made:
        program, flows, ports = made.program("count"), made.map("flows", 40, 16), counted_ports(made)
        assert run_on(program, frame, repeat=1000).retval == UNSPEC
        run_on(program, roce_frame(replace(FLOW, qpn=5), payload=100))
        run_on(program, roce_frame(replace(FLOW, sport=51235), payload=100))
        for change in NOT_ROCE.values():
            run_on(program, change(frame))
        keys, values = flows.items()
        rows = dict(zip(struct.iter_unpack("=2HI16s16s", keys), struct.iter_unpack("=2Q", values), strict=True))
        ends = ip_address("::ffff:10.0.0.1").packed, ip_address("::ffff:10.0.1.1").packed
        assert rows[TEST_PORT, 51234, 0xABCDEF, *ends] == (1000, 1000 * len(frame))
        assert rows[TEST_PORT, 51234, 5, *ends] == rows[TEST_PORT, 51235, 0xABCDEF, *ends] == (1, len(frame))
        assert len(rows) == 3
        packets, _, roce, roce_bytes, misses = ports()
        assert (packets, roce, roce_bytes) == (1002 + len(NOT_ROCE), 1002, sum(size for _, size in rows.values()))
        assert misses == 0


@pytest.mark.parametrize("flow", [FLOW, FLOW6], ids=["IPv4", "IPv6"])
def test_tcp_and_udp_that_hosts_send_are_counted_by_5_tuple(objects: Path, flow: Flow) -> None:
    frame, at = roce_frame(flow, payload=100), 23 if flow is FLOW else 20  # where the protocol is
    ends = tuple(ip_address(each if ":" in each else f"::ffff:{each}").packed for each in (flow.src_ip, flow.dst_ip))
    l4 = 34 if flow is FLOW else 54
    tcp = frame[:at] + b"\x06" + frame[at + 1 :]
    udp = frame[: l4 + 2] + struct.pack("!H", 5201) + frame[l4 + 4 :]
    icmp = frame[:at] + b"\x01" + frame[at + 1 :]
    if flow is FLOW:
        fragment = udp[:20] + b"\x20\x00" + udp[22:]
    else:
        fragment = udp[:at] + b"\x2c" + udp[at + 1 : l4] + b"\x11\0\0\x01\0\0\0\x07" + udp[l4:]
    with loaded(objects / "count.o") as made:
        program, flows = made.program("count"), made.map("flows", 40, 16)
        for each in (tcp, tcp[: l4 + 20], udp, fragment, icmp):  # the second one is as short as an ACK
            run_on(program, each)  # the switch itself sends it
        assert flows.items() == (b"", b"")
        for each in (tcp, tcp[: l4 + 20], udp, fragment, icmp):
            run_on(program, each, ifindex=1, counted=True)
        keys, values = flows.items()
        rows = dict(zip(struct.iter_unpack("=2HI16s16s", keys), struct.iter_unpack("=2Q", values), strict=True))
        assert rows == {
            (TEST_PORT, 51234, 6 << 24 | 4791, *ends): (2, len(tcp) + l4 + 20),
            (TEST_PORT, 51234, 17 << 24 | 5201, *ends): (1, len(udp)),
            (TEST_PORT, 0, 17 << 24, *ends): (1, len(fragment)),
        }


def test_a_full_map_is_counted_as_misses_not_forgotten(objects: Path) -> None:
    with loaded(objects / "count.o", {"flows": 8}) as made:
        for q in range(20):
            run_on(made.program("count"), roce_frame(replace(FLOW, qpn=q)))
        found = len(made.map("flows", 40, 16).items()[0]) // 40
        *_, misses = counted_ports(made)()
        assert found + misses == 20 and misses > 0


def test_batches_read_maps_of_any_size_whole(objects: Path) -> None:
    with loaded(objects / "count.o") as made:
        flows = made.map("flows", 40, 16)
        assert flows.items() == (b"", b"")
        for n in range(10_000):
            flows.update(struct.pack("=10I", 1, n, *range(8)), struct.pack("=2Q", n, n))
        keys, values = flows.items()
        assert sorted(k[1] for k in struct.iter_unpack("=10I", keys)) == list(range(10_000))
        assert keys == b"".join(struct.pack("=10I", 1, n, *range(8)) for (n, _) in struct.iter_unpack("=2Q", values))
        assert flows.delete(struct.pack("=10I", 1, 5, *range(8)))
        assert not flows.delete(struct.pack("=10I", 1, 5, *range(8)))
        assert len(flows.drain()[0]) == 9_999 * 40
        assert flows.items() == flows.drain() == (b"", b"")


def test_a_nic_counts_roce_and_lets_everything_go_on_to_its_sockets(objects: Path) -> None:
    with loaded(objects / "nic.o") as made:
        program = made.program("nic")
        frames = [roce_frame(FLOW), roce_frame(FLOW6)]
        assert {run_on(program, frame).retval for frame in frames} == {UNSPEC}
        for name, change in NOT_ROCE.items():
            assert run_on(program, change(roce_frame(FLOW))).retval == UNSPEC, name
        assert struct.unpack("=2Q", made.map("taken", 4, 16).lookup(bytes(4)) or b"") == (2, sum(map(len, frames)))


def test_errors_name_object_and_reason(tmp_path: Path) -> None:
    (tmp_path / "no.o").write_bytes(b"not an object")
    for call, words in (
        (lambda: Object(tmp_path / "no.o"), "cannot be opened as a BPF object"),
        (lambda: Map.pinned(Path("/sys/fs/bpf/heddle/none"), 4, 4), "cannot be opened: No such file"),
        (lambda: Program.pinned(Path("/sys/fs/bpf/heddle/none")), "cannot be opened: No such file"),
    ):
        with pytest.raises(MachineError, match=words):
            call()


def test_descriptors_do_not_leak(objects: Path) -> None:
    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    with loaded(objects / "hash.o"):
        pass
    before = count()
    for _ in range(5):
        with loaded(objects / "hash.o") as made:
            run_on(made.program("hash"), roce_frame(FLOW))
    assert count() == before


def verbs_frame(psn: int, opcode: int = 0x0A, tos: int = 0, syndrome: int = 0, flow: Flow = FLOW) -> bytes:
    """A frame with other fields of its BTH and AETH. tos: of the IP header, whose checksum programs do not read."""
    frame = bytearray(roce_frame(flow, payload=100))
    udp = 34 if flow is FLOW else 54
    frame[udp + 8] = opcode
    frame[udp + 16 : udp + 20] = struct.pack("!I", 1 << 31 | psn)
    frame[udp + 20] = syndrome
    if flow is FLOW:
        frame[15] = tos
    else:
        frame[14:16] = struct.pack("!H", 0x6000 | tos << 4)
    return bytes(frame)


@pytest.mark.parametrize("flow", [FLOW, FLOW6], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("side", ["sent", "came"])
def test_packets_of_hosts_own_kernels_are_counted_by_sequence_mark_and_answer(
    objects: Path, side: str, flow: Flow
) -> None:
    with loaded(objects / "verbs.o") as made:
        program, rows = made.program(side), made.map(f"{side}_rows", 40, 64)
        key = StackKey(flow.src_ip, flow.dst_ip, flow.sport, flow.qpn).packed()
        rows.update(key, struct.pack("=7Q2I", 0, 0, 0, 0, 0, 0, 0, 0xFFFFFE, 0))
        passes = 0 if side == "came" else UNSPEC  # TC_ACT_OK: `nic`, which would hide the packet, does not run
        for psn in (0xFFFFFE, 0xFFFFFF, 1, 2, 0, 0xFFFFFF):  # two that are early, then the missing one, then an old one
            assert run_on(program, verbs_frame(psn, flow=flow)).retval == passes
        for psn, opcode, tos, syndrome in ((1, 0x0A, 3, 0), (9, 0x11, 0, 0x60), (9, 0x11, 0, 0x2C), (9, 0x11, 0, 0x1F)):
            run_on(program, verbs_frame(psn, opcode, tos, syndrome, flow))
        found = struct.unpack("=7Q2I", rows.lookup(key) or b"")
        length = len(verbs_frame(0, flow=flow))
        # packets, bytes, marked, ahead, behind, NAKs, not ready, next PSN
        assert found[:8] == (10, 10 * length, 1, 2, 1, 1, 1, 2)
        run_on(program, roce_frame(replace(flow, qpn=5)))
        assert len(rows.all_keys()) == 1  # a flow without a row does not count
        assert run_on(program, NOT_ROCE["TCP"](verbs_frame(0))).retval == UNSPEC
