"""Read a capture file of any origin, packet by packet: pcap and pcapng, both byte orders, gzip or not.

In:  a path. Out: CapturedPackets with Ethernet frames, as they come: memory does not grow with the file. Reading ends
with the last packet, or with `damage`, which names the block, whatever the file contains.
Other link types (raw IP, Linux cooked) get an Ethernet header without addresses, so that one dissector reads all.
Formats: draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng, link types of tcpdump.org/linktypes.html.
"""

from __future__ import annotations

import gzip
import itertools
import os
import struct
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, cast

from heddle.base.files import open_regular
from heddle.base.problems import InputError, Problem, nearest, printable

_GZIP: Final = b"\x1f\x8b"
# Magic number as the first four bytes -> byte order, and nanoseconds in a unit of time.
_PCAP: Final[Mapping[bytes, tuple[str, int]]] = {
    b"\xd4\xc3\xb2\xa1": ("<", 1000),
    b"\xa1\xb2\xc3\xd4": (">", 1000),
    b"\x4d\x3c\xb2\xa1": ("<", 1),
    b"\xa1\xb2\x3c\x4d": (">", 1),
}
_PCAP_VERSION, _PCAPNG_VERSIONS = 2, ((1, 0), (1, 2))
_RESERVED: Final = 0x03FF0000
_SECTION: Final = b"\x0a\x0d\x0d\x0a"
_BYTE_ORDERS: Final[Mapping[bytes, str]] = {b"\x4d\x3c\x2b\x1a": "<", b"\x1a\x2b\x3c\x4d": ">"}
_INTERFACE, _OLD_PACKET, _SIMPLE, _ENHANCED = 1, 2, 3, 6
_SECTION_HEADER: Final = -1
_BLOCKS: Final[Mapping[int, str]] = {
    _SECTION_HEADER: " (section header)", _INTERFACE: " (interface description)", _OLD_PACKET: " (packet)",
    _SIMPLE: " (simple packet)", _ENHANCED: " (enhanced packet)",
}  # fmt: skip
_NAME_OPTION, _RESOLUTION_OPTION, _OFFSET_OPTION, _FLAGS_OPTION = 2, 9, 14, 2
_MOST_BYTES: Final = 1 << 24  # of one block: more is damage
_MOST_KEPT: Final = 1 << 18  # of one packet, as in Wireshark
_MOST_INTERFACES: Final = 4096
_MOST_OPTIONS: Final = 1024  # of a block, that are read
_LONGEST_NAME: Final = 256
# A small file must not keep its reader busy for hours. gzip packs zeros 1,030 to 1, and captures of equal packets 200.
_EXPANSION: Final = 250
_EXPANDED: Final = 1 << 26  # bytes that any file may expand to
# A packet with a time of its own takes 4 bytes or more in a gzip file.
_PACKED_PACKET: Final = 2
_ANY_PACKETS: Final = 100_000
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
    _left: int = field(kw_only=True)  # bytes that may still be read
    _most: int = field(kw_only=True)  # packets
    _stream: IO[bytes] = field(kw_only=True)
    _magic: bytes = field(kw_only=True)

    def packets(self) -> Iterator[CapturedPacket]:
        """Every packet, once. Closes the file."""
        read = self._pcap if self._magic in _PCAP else self._pcapng
        with self._stream:
            try:
                for number, packet in enumerate(read(), 1):
                    if number > self._most:
                        raise _CutError(f"{self._most} packets are more than its size allows: decompress it first")
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
        self._left -= count
        if self._left < 0:
            raise _CutError(f"the file expands to more than {_EXPANSION} times its size at {what}: decompress it first")
        return data

    def _pcap(self) -> Iterator[_Record]:
        order, unit_ns = _PCAP[self._magic]
        header = self._bytes(20, "its header")
        major, minor = struct.unpack_from(f"{order}HH", header)
        if major != _PCAP_VERSION:
            raise _CutError(f"its header has the version {major}.{minor}, which is not known")
        (link,) = struct.unpack_from(f"{order}I", header, 16)
        if link & _RESERVED:
            raise _CutError(f"its header has the link type {link:#x}, whose reserved bits are set")
        link &= 0xFFFF
        self.interfaces.append(CaptureInterface("", link))
        record = struct.Struct(f"{order}IIII")
        number = 0
        while head := self._bytes(16, f"packet {number + 1}", may_end=True):
            number += 1
            seconds, fraction, kept, wire_bytes = record.unpack(head)
            self._check(kept, f"packet {number}", _MOST_KEPT)
            data = self._bytes(kept, f"packet {number}")
            yield "", seconds * _SECOND + fraction * unit_ns, None, wire_bytes, _ethernet(link, data)

    def _pcapng(self) -> Iterator[_Record]:
        sections = packets = 0
        order, head = "", _SECTION
        for number in itertools.count(1):
            after = f", after packet {packets}" if packets else ""
            if number > 1 and not (head := self._bytes(4, f"block {number}{after}", may_end=True)):
                return
            if head == _SECTION:  # another one after the first: cat of two files
                kind, sections = _SECTION_HEADER, len(self.interfaces)
            else:
                (kind,) = struct.unpack(f"{order}I", head)
            what = f"block {number}{_BLOCKS.get(kind, '')}{after}"
            length = self._bytes(4, what)
            magic = self._bytes(4, what) if kind == _SECTION_HEADER else b""
            order = self._order(magic, what) if magic else order
            body = magic + self._body(order, length, what, len(magic))
            try:
                if kind == _SECTION_HEADER:
                    self._section(order, body)
                elif kind == _INTERFACE:
                    self.interfaces.append(self._interface(order, body))
                elif kind in (_ENHANCED, _OLD_PACKET, _SIMPLE):
                    packets += 1
                    yield self._packet(order, kind, body, sections)
            except struct.error:
                raise _CutError(f"{what} is too short: {len(body)} bytes") from None
            except _CutError as error:
                raise _CutError(f"{what} {error}") from None

    @staticmethod
    def _order(magic: bytes, what: str) -> str:
        """The byte order of a section and, until then, of the length of its header."""
        if magic not in _BYTE_ORDERS:
            raise _CutError(f"{what} begins with {magic.hex()}, which is no byte order")
        return _BYTE_ORDERS[magic]

    def _body(self, order: str, length: bytes, what: str, read: int) -> bytes:
        """The rest of a block, without its second length. read: bytes of its body that were read already."""
        (size,) = struct.unpack(f"{order}I", length)
        if size % 4 or size < 12 + read:
            raise _CutError(f"{what} has the length {size}")
        self._check(size, what)
        body = self._bytes(size - 8 - read, what)
        if body[-4:] != length:
            (end,) = struct.unpack(f"{order}I", body[-4:])
            raise _CutError(f"{what} has the length {size} at its start and {end} at its end")
        return body[:-4]

    @staticmethod
    def _check(size: int, what: str, most: int = _MOST_BYTES) -> None:
        if size > most:
            raise _CutError(f"{what} has the length {size}, so it is damaged")

    @staticmethod
    def _section(order: str, body: bytes) -> None:
        major, minor = struct.unpack_from(f"{order}HH", body, 4)
        if (major, minor) not in _PCAPNG_VERSIONS:
            raise _CutError(f"has the version {major}.{minor}, which is not known")
        struct.unpack_from(f"{order}q", body, 8)
        _options(order, body, 16)

    def _interface(self, order: str, body: bytes) -> CaptureInterface:
        if len(self.interfaces) == _MOST_INTERFACES:
            raise _CutError(f"describes interface {_MOST_INTERFACES + 1}: more than are read")
        link, _, _ = struct.unpack_from(f"{order}HHI", body)
        options = _options(order, body, 8)
        name = printable(options.get(_NAME_OPTION, b"").rstrip(b"\0").decode(errors="replace"), _LONGEST_NAME)
        resolution = (options.get(_RESOLUTION_OPTION, b"") or b"\x06")[0]
        ticks = 1 << (resolution & 0x7F) if resolution & 0x80 else 10**resolution
        offset = options.get(_OFFSET_OPTION, b"")
        shift = struct.unpack(f"{order}q", offset)[0] if len(offset) == 8 else 0
        return CaptureInterface(name or f"interface {len(self.interfaces)}", link, ticks, shift)

    def _packet(self, order: str, kind: int, body: bytes, section: int) -> _Record:
        if kind == _SIMPLE:  # no time, and of the first interface
            index, high, low, at = 0, 0, 0, 4
            (wire_bytes,) = struct.unpack_from(f"{order}I", body)
            kept = min(wire_bytes, len(body) - at)
        else:
            layout = "IIIII" if kind == _ENHANCED else "HHIIII"
            at = struct.calcsize(f"{order}{layout}")
            values = struct.unpack_from(f"{order}{layout}", body)
            index, (high, low, kept, wire_bytes) = values[0], values[-4:]
        if section + index >= len(self.interfaces):
            raise _CutError(f"is of interface {index}, which the file does not describe")
        if at + kept > len(body) or kept > _MOST_KEPT:
            raise _CutError(f"is of {len(body)} bytes and has a packet of {kept}")
        interface = self.interfaces[section + index]
        flags = b"" if kind == _SIMPLE else _options(order, body, at + (kept + 3 & ~3)).get(_FLAGS_OPTION, b"")
        direction = struct.unpack(f"{order}I", flags)[0] & 3 if len(flags) == 4 else 0
        data = _ethernet(interface.link, body[at : at + kept])
        return interface.name, interface.time_ns(high << 32 | low), {1: False, 2: True}.get(direction), wire_bytes, data


_Record = tuple[str, int, bool | None, int, bytes | None]


class _CutError(Exception):
    """The file cannot be read any further."""


def open_capture(path: Path, shown: str) -> CaptureFile:
    """Open a capture file. shown: as the user wrote it. InputError when it is no capture file."""
    try:
        stream: IO[bytes] = open_regular(path)
        size = os.fstat(stream.fileno()).st_size
        start = stream.read(2)
        stream.seek(0)
        compressed = start == _GZIP
        if compressed:
            stream = cast("IO[bytes]", gzip.GzipFile(fileobj=stream))
        magic = stream.read(4)
    except IsADirectoryError:
        raise _refused(shown, "is a directory", _inside(path, shown)) from None
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
    left = most = sys.maxsize
    if compressed:
        left, most = _EXPANDED + _EXPANSION * size, _ANY_PACKETS + size // _PACKED_PACKET
    format = "pcap" if magic in _PCAP else "pcapng"
    return CaptureFile(shown, format, compressed, _stream=stream, _magic=magic, _left=left, _most=most)


def _refused(shown: str, why: str, hint: str) -> InputError:
    return InputError(Problem("", f"--read {shown}", why, hint))


def _inside(path: Path, shown: str) -> str:
    example = ""
    with suppress(OSError):
        example = min((each.name for each in path.iterdir() if ".pcap" in each.name), default="")
    return f"name a file in it: --read {Path(shown) / example}" if example else "name a capture file"


def _beside(path: Path, shown: str) -> str:
    """The file whose name is most like it, in the same directory."""
    try:
        near = nearest(path.name, [each.name for each in path.parent.iterdir() if each.is_file()])
    except OSError:
        return f"the directory {Path(shown).parent} does not exist, or cannot be read"
    return f"did you mean {Path(shown).with_name(near)}?" if near else "name a pcap or pcapng file"


def _options(order: str, data: bytes, at: int) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for _ in range(_MOST_OPTIONS):
        if at + 4 > len(data):
            break
        code, size = struct.unpack_from(f"{order}HH", data, at)
        if at + 4 + size > len(data):
            raise _CutError(f"has an option of {size} bytes, which does not fit in")
        if code == 0:
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
