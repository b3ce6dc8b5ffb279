"""Read a capture file of any origin, packet by packet: pcap and pcapng, both byte orders, gzip or not.

In:  a path. Out: CapturedPackets with Ethernet frames, as they come: memory does not grow with the file.
Other link types (raw IP, Linux cooked) get an Ethernet header without addresses, so that one dissector reads all.
Formats: draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng, link types of tcpdump.org/linktypes.html.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, cast

from heddle.base.files import open_regular
from heddle.base.problems import InputError, Problem, nearest

_GZIP: Final = b"\x1f\x8b"
# Magic number as the first four bytes -> byte order, and nanoseconds in a unit of time.
_PCAP: Final[Mapping[bytes, tuple[str, int]]] = {
    b"\xd4\xc3\xb2\xa1": ("<", 1000),
    b"\xa1\xb2\xc3\xd4": (">", 1000),
    b"\x4d\x3c\xb2\xa1": ("<", 1),
    b"\xa1\xb2\x3c\x4d": (">", 1),
}
_SECTION: Final = b"\x0a\x0d\x0d\x0a"
_BYTE_ORDERS: Final[Mapping[bytes, str]] = {b"\x4d\x3c\x2b\x1a": "<", b"\x1a\x2b\x3c\x4d": ">"}
_INTERFACE, _OLD_PACKET, _SIMPLE, _ENHANCED = 1, 2, 3, 6
_NAME_OPTION, _RESOLUTION_OPTION, _OFFSET_OPTION, _FLAGS_OPTION = 2, 9, 14, 2
_MOST_BYTES: Final = 1 << 24  # of one record or block: more is damage, not a packet
_ETHERNET, _LINUX_COOKED, _LINUX_COOKED2 = 1, 113, 276
_RAW_IP: Final = frozenset({12, 14, 101, 228, 229})
_NO_ADDRESSES: Final = bytes(12)
_IP_VERSIONS: Final[Mapping[int, bytes]] = {4: b"\x08\x00", 6: b"\x86\xdd"}
_SECOND: Final = 10**9


@dataclass(frozen=True, slots=True)
class CapturedPacket:
    """One packet. number: from 1, as Wireshark counts; port: name of its interface; time_ns: since 1970.

    outgoing: None when the file does not say. data: an Ethernet frame as far as it was kept; None when its link type
    is not known here. wire_bytes: its length on the wire.
    """

    number: int
    port: str
    time_ns: int
    outgoing: bool | None
    wire_bytes: int
    data: bytes | None


@dataclass(frozen=True, slots=True)
class CaptureInterface:
    """An interface of a file. ticks: units of its clock in a second; offset_s: to add to its times."""

    name: str
    link: int
    ticks: int = _SECOND
    offset_s: int = 0

    def time_ns(self, ticks: int) -> int:
        """A time of this interface as nanoseconds since 1970."""
        return ticks * _SECOND // self.ticks + self.offset_s * _SECOND


@dataclass(slots=True)
class CaptureFile:
    """A capture file, open. `damage` says after the last packet why there is not more; empty when it is complete."""

    path: str
    format: str
    compressed: bool
    damage: str = ""
    interfaces: list[CaptureInterface] = field(default_factory=list)
    _stream: IO[bytes] = field(kw_only=True)
    _magic: bytes = field(kw_only=True)

    def packets(self) -> Iterator[CapturedPacket]:
        """Every packet, once. Closes the file."""
        read = self._pcap if self._magic in _PCAP else self._pcapng
        with self._stream:
            try:
                for number, packet in enumerate(read(), 1):
                    yield CapturedPacket(number, *packet)
            except _CutError as error:
                self.damage = str(error)

    def _bytes(self, count: int, what: str, *, may_end: bool = False) -> bytes:
        """The next bytes; empty at the end of the file where it may end. _CutError when there are fewer."""
        try:
            data = self._stream.read(count)
        except (OSError, EOFError, zlib.error) as error:
            raise _CutError(f"{what} cannot be read: {error}") from None
        if len(data) < count and (data or not may_end):
            raise _CutError(f"the file ends within {what}")
        return data

    def _pcap(self) -> Iterator[_Record]:
        order, unit_ns = _PCAP[self._magic]
        header = self._bytes(20, "its header")
        link = struct.unpack_from(f"{order}I", header, 16)[0] & 0xFFFF
        self.interfaces.append(CaptureInterface("", link))
        record = struct.Struct(f"{order}IIII")
        number = 0
        while head := self._bytes(16, f"packet {number + 1}", may_end=True):
            number += 1
            seconds, fraction, kept, wire_bytes = record.unpack(head)
            self._check(kept, f"packet {number}")
            data = self._bytes(kept, f"packet {number}")
            yield "", seconds * _SECOND + fraction * unit_ns, None, wire_bytes, _ethernet(link, data)

    def _pcapng(self) -> Iterator[_Record]:
        order, kind, body = self._section(self._bytes(4, "its header"))
        sections = number = 0
        while True:
            if kind == _INTERFACE:
                self.interfaces.append(self._interface(order, body))
            elif kind in (_ENHANCED, _OLD_PACKET, _SIMPLE):
                number += 1
                yield self._packet(order, kind, body, sections, number)
            what = f"a block after packet {number}" if number else "a block before the first packet"
            head = self._bytes(4, what, may_end=True)
            if not head:
                return
            if head == _SECTION:  # another section, with interfaces of its own: cat of two files
                order, kind, body = self._section(self._bytes(4, what))
                sections = len(self.interfaces)
                continue
            (kind,) = struct.unpack(f"{order}I", head)
            body = self._body(order, self._bytes(4, what), what)

    def _section(self, length: bytes) -> tuple[str, int, bytes]:
        """Byte order of a section, whose block type was read, and its length, in an order not yet known."""
        magic = self._bytes(4, "its header")
        order = _BYTE_ORDERS.get(magic)
        if order is None:
            raise _CutError(f"a section begins with {magic.hex()}, which is no byte order")
        return order, -1, magic + self._body(order, length, "its header", read=4)

    def _body(self, order: str, length: bytes, what: str, read: int = 0) -> bytes:
        """The rest of a block. read: bytes of its body that were read already."""
        (size,) = struct.unpack(f"{order}I", length)
        if size % 4 or size < 12 + read:
            raise _CutError(f"{what} has the length {size}")
        self._check(size, what)
        return self._bytes(size - 8 - read, what)[:-4]

    @staticmethod
    def _check(size: int, what: str) -> None:
        if size > _MOST_BYTES:
            raise _CutError(f"{what} has the length {size}, so it is damaged")

    def _interface(self, order: str, body: bytes) -> CaptureInterface:
        link = struct.unpack_from(f"{order}H", body)[0]
        options = _options(order, body[8:])
        name = options.get(_NAME_OPTION, b"").decode(errors="replace") or f"interface {len(self.interfaces)}"
        resolution = options.get(_RESOLUTION_OPTION, b"\x06")[0]
        ticks = 1 << (resolution & 0x7F) if resolution & 0x80 else 10**resolution
        offset = options.get(_OFFSET_OPTION, b"")
        shift = struct.unpack(f"{order}q", offset)[0] if len(offset) == 8 else 0
        return CaptureInterface(name, link, ticks, shift)

    def _packet(self, order: str, kind: int, body: bytes, section: int, number: int) -> _Record:
        what = f"packet {number}"
        try:
            if kind == _SIMPLE:  # no time, and of the first interface
                index, high, low, at = 0, 0, 0, 4
                (wire_bytes,) = struct.unpack_from(f"{order}I", body)
                kept = min(wire_bytes, len(body) - at)
            else:
                layout = "IIIII" if kind == _ENHANCED else "HHIIII"
                at = struct.calcsize(f"{order}{layout}")
                values = struct.unpack_from(f"{order}{layout}", body)
                index, (high, low, kept, wire_bytes) = values[0], values[-4:]
        except struct.error:
            raise _CutError(f"{what} has a block that is too short") from None
        if section + index >= len(self.interfaces):
            raise _CutError(f"{what} is of interface {index}, which the file does not describe")
        if at + kept > len(body):
            raise _CutError(f"{what} has a block that is shorter than its {kept} bytes")
        interface = self.interfaces[section + index]
        flags = b"" if kind == _SIMPLE else _options(order, body[at + (kept + 3 & ~3) :]).get(_FLAGS_OPTION, b"")
        direction = struct.unpack(f"{order}I", flags)[0] & 3 if len(flags) == 4 else 0
        data = _ethernet(interface.link, body[at : at + kept])
        return interface.name, interface.time_ns(high << 32 | low), {1: False, 2: True}.get(direction), wire_bytes, data


_Record = tuple[str, int, bool | None, int, bytes | None]


class _CutError(Exception):
    """The file cannot be read any further."""


def open_capture(path: Path, shown: str) -> CaptureFile:
    """Open a capture file. shown: as the user wrote it. InputError when it is no capture file."""
    if path.is_dir():
        example = next((each.name for each in sorted(path.iterdir()) if ".pcap" in each.name), "")
        hint = f"name a file in it: --read {Path(shown) / example}" if example else "name a capture file"
        raise _refused(shown, "is a directory", hint)
    try:
        stream = open_regular(path)
        start = stream.read(2)
        stream.seek(0)
        compressed = start == _GZIP
        if compressed:
            stream = cast("IO[bytes]", gzip.GzipFile(fileobj=stream))
        magic = stream.read(4)
    except FileNotFoundError:
        raise _refused(shown, "does not exist", _beside(path, shown)) from None
    except OSError as error:
        raise _refused(shown, f"cannot be read: {error.strerror or error}", "name a capture file") from None
    except (EOFError, zlib.error) as error:
        raise _refused(shown, f"is a damaged gzip file: {error}", "compress the capture again") from None
    if magic not in _PCAP and magic != _SECTION:
        stream.close()
        if not magic:
            raise _refused(shown, "is empty", "a capture file has a header even if no packet was captured")
        formats = "pcap and pcapng files can be read, compressed with gzip or not"
        raise _refused(shown, f"is not a capture file: it begins with {magic.hex()}", formats)
    return CaptureFile(shown, "pcap" if magic in _PCAP else "pcapng", compressed, _stream=stream, _magic=magic)


def _refused(shown: str, why: str, hint: str) -> InputError:
    return InputError(Problem("", f"--read {shown}", why, hint))


def _beside(path: Path, shown: str) -> str:
    """The file whose name is most like it, in the same directory."""
    try:
        near = nearest(path.name, [each.name for each in path.parent.iterdir() if each.is_file()])
    except OSError:
        return f"the directory {Path(shown).parent} does not exist, or cannot be read"
    return f"did you mean {Path(shown).with_name(near)}?" if near else "name a pcap or pcapng file"


def _options(order: str, data: bytes) -> dict[int, bytes]:
    """The options of a block, by code; what is damaged is left out."""
    found: dict[int, bytes] = {}
    at = 0
    while at + 4 <= len(data):
        code, size = struct.unpack_from(f"{order}HH", data, at)
        if code == 0 or at + 4 + size > len(data):
            break
        found[code] = data[at + 4 : at + 4 + size]
        at += 4 + (size + 3 & ~3)
    return found


def _ethernet(link: int, data: bytes) -> bytes | None:
    """The packet as an Ethernet frame; None for a link type that is not known here."""
    if link == _ETHERNET:
        return data
    if link in _RAW_IP:
        return _NO_ADDRESSES + _IP_VERSIONS.get(data[0] >> 4 if data else 0, b"\0\0") + data
    if link == _LINUX_COOKED:
        return _NO_ADDRESSES + data[14:16] + data[16:]
    if link == _LINUX_COOKED2:
        return _NO_ADDRESSES + data[:2] + data[20:]
    return None
