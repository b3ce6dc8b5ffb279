"""Packets that a switch has trimmed: what ends make of them, and of the NACKs and SACKs for them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import pytest
from scapy.packet import Packet

from heddle.endpoints.nic.frames import ip_checksum
from heddle.endpoints.nic.nic import Nic, QueuePair
from heddle.endpoints.nic.qpend import Message, QpEnd, QpInfo
from heddle.endpoints.transports.entropy import FREEZE_S, PENALTIES, Bitmap, Oblivious, Reps
from heddle.endpoints.transports.rc import RcReceiver, RcSender
from heddle.endpoints.transports.rcstate import RcParams
from heddle.endpoints.transports.srd import SrdParams, SrdReceiver, SrdSender
from heddle.endpoints.transports.uc import UcParams, UcReceiver, UcSender
from heddle.wire import layout as wire
from heddle.wire import roce
from heddle.wire.sack import MARKED, TRIMMED, TRIMMED_LAST, Nack, PsnBits, Sack
from heddle.wire.sport import entropy_sports
from tests.unit.fastpath_bench import MTU, FrameLists, flow
from tests.unit.roce_samples import SAMPLES, SAMPLES6
from tests.unit.test_fuzz_nic import header
from tests.unit.test_rc import RKEY, Memory
from tests.unit.test_roce_parse import read

SENDER, RECEIVER, PSN = 0x100, 0x300, wire.PSN_MASK - 20
RC = RcParams(MTU, 32, 4, 1.0, 1000, 0.02, "selective-repeat", wire.DSCP_REPEATED << 2 | wire.ECT0)
SRD = SrdParams(RC, 0.25)
SIZES: Final = (1, 5 * MTU, 40 * MTU - 3, 3 * MTU, 17)


def trimmed(frame: bytes, version: int = 4, dscp: int = wire.DSCP_TRIMMED, size: int = 256) -> bytes:
    """As it arrives at a host: `size` bytes of IP, the IP length of the whole packet, a new DSCP."""
    made = bytearray(frame[: wire.IP_AT + size])
    if version == 6:
        first = int.from_bytes(made[14:18], "big")
        made[14:18] = (first & ~(0xFC << 20) | dscp << 22).to_bytes(4, "big")
        return bytes(made)
    made[15] = dscp << 2 | made[15] & wire.ECN_MASK
    made[24:26] = bytes(2)
    made[24:26] = ip_checksum(bytes(made[14:34])).to_bytes(2, "big")
    return bytes(made)


@pytest.mark.parametrize("sample", [*SAMPLES, *SAMPLES6], ids=lambda s: s.name)
def test_a_trimmed_frame_is_found_by_its_dscp_and_length_before_any_icrc(sample) -> None:  # type: ignore[no-untyped-def]
    frame, version = sample.frame(), sample.version
    least = wire.LAYOUTS[version].ext_at + wire.EXTRA_BYTES[sample.opcode] - wire.IP_AT
    cuts = [cut for cut in (least, 256) if wire.MIN_ETHERNET <= cut + wire.IP_AT < len(frame)]
    for dscp, reason in ((wire.DSCP_TRIMMED, TRIMMED), (wire.DSCP_TRIMMED_LAST, TRIMMED_LAST)):
        for cut in cuts:
            got = read(trimmed(frame, version, dscp, cut), dirt=0xA5, version=version)
            assert (got.oks, got.sounds, got.trimmed) == ([False], [False], {0: wire.IP_AT + cut})
            assert (got.kinds[0].trimmed, got.psns, got.kinds[0].opcode) == (reason, [sample.psn], sample.opcode)
    # Cut once more within its headers, cut with the DSCP of data, or whole with a DSCP of trimmed packets: no.
    others = [trimmed(frame, version, size=least - 1), frame[:-1], trimmed(frame, version, size=9000)]
    got = read(*others, dirt=0xA5, version=version)
    assert got.trimmed == {} and got.sounds == [False, False, True]


@pytest.mark.parametrize("bits", [24, 32])
def test_sacks_and_nacks_come_back_in_both_widths(bits: PsnBits) -> None:
    dice = random.Random(bits)
    for _ in range(200):
        head = {"kind": dice.randrange(16), "following": dice.randrange(16), "flags": dice.randrange(128)}
        more = {"source": dice.randrange(1 << 16), "target": dice.randrange(1 << 16)}
        cc = {"cc_type": dice.randrange(16), "cc_flags": dice.randrange(16)}
        only = {"entropy": dice.randrange(1 << 32)} if bits == 24 else {}
        sack = Sack(
            dice.randrange(1 << bits), dice.randint(-(1 << 15), (1 << 15) - 1), dice.randint(-(1 << 15), 1 << 14),
            dice.getrandbits(64), **head, **more, **cc, **only, mpr=dice.randrange(256),
            **({} if bits == 24 else {"state": dice.getrandbits(64)}),
        )  # fmt: skip
        nack = Nack(
            dice.randrange(1 << bits), dice.randrange(256), vendor=dice.randrange(256), **head, **more, **only,
            **({**cc, "sent": dice.randrange(1 << 16)} if bits == 24 else {"payload": dice.getrandbits(32)}),
        )  # fmt: skip
        assert Sack.unpack(sack.pack(bits), bits) == sack and Nack.unpack(nack.pack(bits), bits) == nack
        assert (len(sack.pack(bits)), len(nack.pack(bits))) == {24: (28, 20), 32: (32, 16)}[bits]
        if bits == 24:  # a second description of the same layouts
            seth, neth = roce.SETH(sack.pack()), roce.NETH(nack.pack())
            assert (seth.cack_psn, seth.ack_psn_off, seth.sack_off, seth.bitmap) == (
                sack.cack, sack.ack & 0xFFFF, sack.base & 0xFFFF, sack.bitmap
            )  # fmt: skip
            same: Sequence[tuple[Packet, Sack | Nack]] = ((seth, sack), (neth, nack))
            assert all(
                (p.kind, p.next, p.entropy, p.cc_type) == (h.kind, h.following, h.entropy, h.cc_type) for p, h in same
            )
            assert (neth.nack_psn, neth.reason, neth.tx_ts) == (nack.psn, nack.reason, nack.sent)
    found = Sack.unpack(bytes.fromhex("0020 0002 0000c350 0001 0002 00fffffe 12 03 0001 8000000000000005"))
    assert found == Sack(
        0xFFFFFE, 2, 1, 0x8000000000000005, 50000, MARKED, source=1, target=2, cc_type=1, cc_flags=2, mpr=3
    )  # fmt: skip
    assert found.marked and sorted(found.psns()) == [1, 2, 3, 64]


Ends = tuple[Callable[[QpInfo], QpEnd], Callable[[QpInfo, Memory], QpEnd]]
ENDS: Final[dict[str, Ends]] = {
    "rc": (lambda qp: RcSender(RC, qp), lambda qp, memory: RcReceiver(RC, qp, memory)),
    "srd": (lambda qp: SrdSender(SRD, qp), lambda qp, memory: SrdReceiver(SRD, qp, memory)),
    "srd, reps": (
        lambda qp: SrdSender(replace(SRD, policy="reps", sacks=True), qp),
        lambda qp, memory: SrdReceiver(replace(SRD, policy="reps", sacks=True), qp, memory),
    ),
}
GO_BACK_N = replace(RC, recovery="go-back-n")
DEAF: Final[dict[str, Ends]] = {
    "go-back-n": (lambda qp: RcSender(GO_BACK_N, qp), lambda qp, memory: RcReceiver(GO_BACK_N, qp, memory)),
    "uc": (lambda qp: UcSender(UcParams(MTU), qp), lambda qp, memory: UcReceiver(UcParams(MTU), qp, memory)),
}


class Loop:
    """Two NICs with one queue pair, and a network between them."""

    def __init__(self, ends: Ends, version: int, seed: int) -> None:
        self.version, self.dice = version, random.Random(seed)
        self.total = self.dice.randbytes(sum(SIZES))
        self.memory = Memory(bytearray(len(self.total)))
        self.now = 0.0
        data = header(version, RECEIVER)
        sprayed = tuple(replace_sport(data, sport) for sport in entropy_sports(50000, 4))
        here = QpInfo(SENDER, data, PSN, sprayed=sprayed)
        self.sender = self._nic(here, ends[0](here))
        there = QpInfo(RECEIVER, flow(version, SENDER), PSN)
        self.receiver = self._nic(there, ends[1](there, self.memory))
        at = 0
        for imm, size in enumerate(SIZES):
            self.sender[2].post(Message(memoryview(self.total)[at : at + size], at, RKEY, imm))
            at += size
        self.data: list[bytes] = []  # every data frame that was sent

    def _nic(self, qp: QpInfo, end: QpEnd) -> tuple[Nic, tuple[FrameLists, FrameLists], QueuePair]:
        sockets = FrameLists(MTU, self.version), FrameLists(MTU, self.version)
        nic = Nic(*sockets, MTU, self.version, answer_bytes=8)  # type: ignore[arg-type]
        pair = QueuePair(nic, qp, end)
        pair.peer_ip = int.from_bytes(qp.flow.dst_ip, "big")
        nic.add(pair)
        return nic, sockets, pair

    def run(self, there: Callable[[list[bytes]], list[bytes]], back: Callable[[list[bytes]], list[bytes]]) -> None:
        """Until all is acknowledged. there, back: what arrives of the frames of one round."""
        (near, out, pair), (far, into, _) = self.sender, self.receiver
        for _ in range(5000):
            if (pair.end.idle and not into[0].arriving) or pair.end.error:
                break
            near.transmit(self.now)
            sent, out[0].sent[:] = list(out[0].sent), []
            self.data += sent
            into[0].arriving += there(sent)
            far.receive(self.now)
            far.transmit(self.now)
            answers, into[1].sent[:] = [*into[1].sent, *into[0].sent], []
            into[0].sent[:] = []
            out[0].arriving += back(answers)
            near.receive(self.now)
            if not sent and not answers:
                self.now = max(self.now, min(near.deadline, far.deadline))
            near.expire(self.now)
            far.expire(self.now)
            self.now += 0.001

    @property
    def counted(self) -> dict[str, int]:
        return {**self.sender[2].end.counters(), **self.receiver[2].end.counters()}

    def check(self) -> None:
        """Right data, each message once and in order."""
        assert self.sender[2].end.idle and not self.sender[2].end.error
        assert bytes(self.memory.data) == self.total
        assert self.memory.arrivals == list(range(len(SIZES)))


def replace_sport(of, sport: int):  # type: ignore[no-untyped-def]
    made = of.with_tos(of.tos)
    made.sport = sport
    return made


def dscp_of(frame: bytes, version: int) -> int:
    return (int.from_bytes(frame[14:16], "big") >> 4 & 0xFF if version == 6 else frame[15]) >> 2


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("name", ENDS)
def test_each_trimmed_packet_gives_one_nack_and_one_repetition_and_no_timeout(name: str, version: int) -> None:
    """The perturbation: without the NACKs the data still arrive, but later and with other counts."""
    for nacks in (True, False):
        for seed in range(8):
            loop, cut = Loop(ENDS[name], version, seed), 0

            def there(frames: list[bytes], loop: Loop = loop) -> list[bytes]:
                nonlocal cut
                short = [f for f in frames if len(f) > 300 and loop.dice.random() < 0.3]
                cut += len(short)
                whole = [f for f in frames if f not in short]
                return [trimmed(f, version, loop.dice.choice((12, 16))) for f in short] + whole  # they overtake

            def back(answers: list[bytes], loop: Loop = loop, nacks: bool = nacks) -> list[bytes]:
                bth = wire.LAYOUTS[loop.version].udp_at + wire.UDP_BYTES
                return [f for f in answers if nacks or f[bth] != wire.NACK]

            loop.run(there, back)
            loop.check()
            counted = loop.counted
            assert counted["trimmed"] == cut > 0
            if nacks:
                assert {key: counted[key] for key in ("naks", "timeouts", "duplicates")} == dict.fromkeys(
                    ("naks", "timeouts", "duplicates"), 0
                )
                assert counted["nacks"] == counted["retransmitted"] == cut
                again = [f for f in loop.data if dscp_of(f, version) == wire.DSCP_REPEATED]
                assert len(again) == cut and loop.now < 1.0
            else:
                assert counted["nacks"] == 0 and counted["naks"] + counted["timeouts"] > 0


@pytest.mark.parametrize("name", ("rc", "srd"))
def test_a_connection_whose_packets_are_trimmed_again_and_again_fails_after_its_retries(name: str) -> None:
    """As with a queue that counts as full for ever. The perturbation: the switch lets a packet pass now and then."""
    params = replace(RC, timeout_s=0.05, retries=3)
    srd = SrdParams(params, 0.0125)
    ends: dict[str, Ends] = {
        "rc": (lambda qp: RcSender(params, qp), lambda qp, memory: RcReceiver(params, qp, memory)),
        "srd": (lambda qp: SrdSender(srd, qp), lambda qp, memory: SrdReceiver(srd, qp, memory)),
    }
    for passing in (0.0, 0.05):
        loop = Loop(ends[name], 4, 1)

        def there(frames: list[bytes], loop: Loop = loop, passing: float = passing) -> list[bytes]:
            short = len(frames[0]) <= 270 if frames else False
            return frames if short else [f if loop.dice.random() < passing else trimmed(f) for f in frames]

        loop.run(there, list)
        error = loop.sender[2].end.error
        assert error.startswith("no acknowledgement after 3 retries") if not passing else not error
        assert loop.counted["nacks"] > 100


@pytest.mark.parametrize("name", ENDS)
def test_data_are_right_whatever_is_trimmed_lost_doubled_or_late(name: str) -> None:
    for seed in range(40):
        loop = Loop(ENDS[name], 4, seed)
        late: dict[int, list[bytes]] = {0: [], 1: []}

        def network(frames: list[bytes], loop: Loop = loop, late: dict[int, list[bytes]] = late) -> list[bytes]:
            way, found = int(bool(frames) and frames[0][42] in (wire.ACK, wire.SACK, wire.NACK)), []
            for frame in frames:
                fate = loop.dice.random()
                if fate < 0.15 and len(frame) > 270:
                    found += [trimmed(frame)] * loop.dice.choice((1, 1, 2))
                elif fate < 0.25:
                    late[way].append(frame)
                elif fate < 0.35:
                    found += [frame, frame]
                elif fate >= 0.45:
                    found.append(frame)
            held, late[way] = late[way], [] if loop.dice.random() < 0.5 else late[way]
            found += held if not late[way] else []
            loop.dice.shuffle(found) if name != "rc" else None
            return found

        loop.run(network, network)
        loop.check()


def mutated(frame: bytes, version: int, dice: random.Random, whole: bool) -> bytes:
    """A trimmed frame that is damaged, too short, cut again, or whole with the DSCP of a trimmed one."""
    size = dice.choice((256, dice.randrange(20, 300), len(frame), dice.randrange(20, 60)))
    size = size if whole else min(size, len(frame) - wire.IP_AT - 1)
    made = bytearray(trimmed(frame, version, dice.choice((12, 12, 16, dice.randrange(64))), size))
    if dice.random() < 0.1:  # cut again
        made = bytearray(trimmed(bytes(made), version, 12, dice.randrange(20, 256)))
    first = wire.LAYOUTS[version].udp_at if dice.random() < 0.7 else 12
    for _ in range(dice.choice((0, 1, 1, 2, 5))):
        if len(made) > first:
            made[dice.randrange(first, len(made))] ^= 1 << dice.randrange(8)
    if dice.random() < 0.2 and len(made) > 18:
        place = 16 if version == 4 else 18
        made[place : place + 2] = dice.randbytes(2)
    if version == 4 and len(made) >= 34:  # with a right checksum of IPv4, so that it comes further
        made[24:26] = bytes(2)
        made[24:26] = ip_checksum(bytes(made[14:34])).to_bytes(2, "big")
    return bytes(made)


def test_entropy_policies_choose_by_what_they_are_told() -> None:
    assert [Oblivious(3, 0).next(0.0) for _ in range(2)] == [0, 0]
    bitmap = Bitmap(4, 0)
    assert [bitmap.next(0.0) for _ in range(4)] == [0, 1, 2, 3]
    bitmap.feedback(1, "marked", 0.0)
    bitmap.feedback(2, "trimmed", 0.0)
    rounds = [[bitmap.next(0.0) for _ in range(3)] for _ in range(2)]
    assert rounds == [[0, 3, 0], [1, 3, 0]] and bitmap.penalties == [0, 0, PENALTIES["trimmed"] - 2, 0]
    for port in range(4):
        bitmap.feedback(port, "timeout", 0.0)
    assert 0 <= bitmap.next(0.0) < 4, "all have a penalty, and a packet leaves all the same"

    reps = Reps(64, 1)
    first = [reps.next(0.0) for _ in range(40)]
    assert len(set(first)) > 20, "nothing to recycle yet: random"
    for port, what in ((5, "good"), (6, "marked"), (7, "trimmed"), (8, "good")):
        reps.feedback(port, what, 0.0)
    assert [reps.next(0.0) for _ in range(2)] == [5, 8]
    assert not reps.fresh
    reps.timed_out(1.0)
    assert [reps.next(1.0) for _ in range(4)] == [5, 8, 5, 8], "frozen: only ports of good answers"
    reps.feedback(9, "good", 1.0)
    assert {reps.next(1.0 + FREEZE_S) for _ in range(16)} - {5, 8, 9}, "then it explores"
