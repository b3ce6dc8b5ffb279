"""Capture files: read the pcap stream of tcpdump, packet by packet, and write pcapng.

In:  the bytes of a pcap stream as they arrive (PcapReader); frames of several ports, in order of time (PcapngFile).
Out: one pcapng file with a separate interface for each port and a direction for each frame; a plain pcap has neither.
Wireshark, tshark, tcpdump and scapy read it, with any file name.
Format: draft-ietf-opsawg-pcapng, blocks of section (SHB), interface (IDB), packet (EPB) and statistics (ISB).
"""

from __future__ import annotations

import os
import stat
import struct
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from heddle.base.problems import InputError, Problem, machine_errors
from heddle.base.userfiles import as_caller, give_to_caller

SNAP_BYTES: Final = 65535  # more than any frame of a fabric
_NANOSECONDS: Final = 0xA1B23C4D  # the magic number of a pcap with times in nanoseconds
_ETHERNET: Final = 1
_HEADER = struct.Struct("=IHHiIII")
_RECORD = struct.Struct("=IIII")  # seconds, nanoseconds, bytes kept, bytes on the wire

_SHB, _IDB, _ISB, _EPB = 0x0A0D0D0A, 1, 5, 6
_BYTE_ORDER: Final = 0x1A2B3C4D
_SHB_USERAPPL, _IF_NAME, _IF_TSRESOL, _IF_FILTER, _EPB_FLAGS, _ISB_OSDROP = 4, 2, 9, 11, 2, 7
_TEN_TO_MINUS_NINE: Final = b"\x09"
_INBOUND, _OUTBOUND = 1, 2


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame that passed a port.

    time_ns: since 1970, stamped by the kernel. seconds: since the start of the capture. wire_bytes: the frame's length
    without FCS, even if `data` has only its first bytes.
    """

    port: str
    time_ns: int
    seconds: float
    outgoing: bool
    wire_bytes: int
    data: bytes


class PcapReader:
    """A parser of a pcap stream, fed in pieces of any size; ValueError unless it is a pcap with nanoseconds."""

    def __init__(self) -> None:
        self._rest = b""
        self.started = False  # the stream's header has arrived, so its writer is capturing

    def feed(self, piece: bytes) -> Iterator[tuple[int, int, bytes]]:
        """The records that are now complete: time in ns since 1970, bytes on the wire, and the captured bytes."""
        data, at = self._rest + piece, 0
        if not self.started:
            if len(data) < _HEADER.size:
                self._rest = data
                return
            magic, *_, link = _HEADER.unpack_from(data)
            if (magic, link) != (_NANOSECONDS, _ETHERNET):
                raise ValueError(f"not a capture of an Ethernet port: magic {magic:#x}, link type {link}")
            self.started, at = True, _HEADER.size
        while len(data) - at >= _RECORD.size:
            seconds, nanoseconds, kept, wire_bytes = _RECORD.unpack_from(data, at)
            end = at + _RECORD.size + kept
            if kept > SNAP_BYTES:
                raise ValueError(f"a record of {kept} bytes, longer than any frame")
            if len(data) < end:
                break
            yield seconds * 10**9 + nanoseconds, wire_bytes, data[at + _RECORD.size : end]
            at = end
        self._rest = data[at:]


class PcapngFile:
    """A capture file that appears only when complete: it is written in the same directory and renamed by `keep`.

    Use it in a with block; InputError at once when the path cannot be written. Without `keep` the file is removed.
    """

    def __init__(self, path: Path, ports: Sequence[str], filter: str = "") -> None:
        self.path = path
        self._numbers = {port: number for number, port in enumerate(ports)}
        self._temporary: Path | None = None
        _check_place(path)
        try:
            with as_caller(path):
                fd, name = tempfile.mkstemp(prefix=f".{path.name[:200]}.", dir=path.parent)
        except OSError as error:
            why = f"cannot be written: {error.strerror}"
            raise InputError(Problem("", f"--out {path}", why, "name a file in a writable directory")) from None
        self._temporary = Path(name)
        self._file = os.fdopen(fd, "wb")
        section = struct.pack("=IHHq", _BYTE_ORDER, 1, 0, -1) + _options((_SHB_USERAPPL, b"Heddle"))
        self._write(_block(_SHB, section) + b"".join(_interface(port, filter) for port in ports))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._temporary is not None:
            with as_caller(self.path):
                self._temporary.unlink(missing_ok=True)
            self._temporary = None
            with machine_errors(str(self.path)):
                self._file.close()

    def write(self, frames: Sequence[Frame]) -> None:
        """Append frames; MachineError when the disk is full."""
        self._write(b"".join(_packet(self._numbers[frame.port], frame) for frame in frames))

    def keep(self, time_ns: int, dropped: Mapping[str, int]) -> None:
        """End the file with the number of frames that the kernel dropped per port until `time_ns`, and rename it."""
        self._write(b"".join(_statistics(self._numbers[port], time_ns, count) for port, count in dropped.items()))
        if self._temporary is None:
            raise ValueError("already kept")
        with machine_errors(str(self.path)):
            os.fsync(self._file.fileno())
            os.fchmod(self._file.fileno(), 0o644)
            self._file.close()
            give_to_caller(self._temporary)
            with as_caller(self.path):
                self._temporary.replace(self.path)
        self._temporary = None

    def _write(self, data: bytes) -> None:
        with machine_errors(str(self.path)):
            self._file.write(data)
            self._file.flush()


def _check_place(path: Path) -> None:
    """InputError when no file can be created at `path`, or a file must not replace it."""
    what = f"--out {path}"
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if path.parent.is_dir():
            return
        why = f"cannot be written: {path.parent} is not a directory"
        raise InputError(Problem("", what, why, "create the directory first, or name another one")) from None
    except (OSError, ValueError) as error:  # a name that is too long, a file where a directory should be, a NUL
        why = getattr(error, "strerror", None) or str(error)
        raise InputError(Problem("", what, f"cannot be a file: {why}", "name another file")) from None
    if stat.S_ISDIR(mode):
        raise InputError(Problem("", what, "is a directory", f"name a file: --out {path / 'capture.pcapng'}"))
    if not stat.S_ISREG(mode):  # as root, /dev/null could be replaced
        raise InputError(Problem("", what, "exists and is not a regular file", "name another file"))


def _block(kind: int, body: bytes) -> bytes:
    size = struct.pack("=I", len(body) + 12)
    return struct.pack("=I", kind) + size + body + size


def _options(*pairs: tuple[int, bytes]) -> bytes:
    packed = (struct.pack("=HH", code, len(value)) + _padded(value) for code, value in pairs)
    return b"".join(packed) + bytes(4)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def _interface(port: str, filter: str) -> bytes:
    known = [(_IF_NAME, port.encode()), (_IF_TSRESOL, _TEN_TO_MINUS_NINE)]
    if filter:
        known.append((_IF_FILTER, b"\0" + filter.encode(errors="replace")[:60_000]))  # 0: as libpcap takes it
    return _block(_IDB, struct.pack("=HHI", _ETHERNET, 0, SNAP_BYTES) + _options(*known))


def _packet(number: int, frame: Frame) -> bytes:
    high, low = frame.time_ns >> 32, frame.time_ns & 0xFFFFFFFF
    head = struct.pack("=IIIII", number, high, low, len(frame.data), frame.wire_bytes)
    flags = struct.pack("=I", _OUTBOUND if frame.outgoing else _INBOUND)
    return _block(_EPB, head + _padded(frame.data) + _options((_EPB_FLAGS, flags)))


def _statistics(number: int, time_ns: int, dropped: int) -> bytes:
    head = struct.pack("=III", number, time_ns >> 32, time_ns & 0xFFFFFFFF)
    return _block(_ISB, head + _options((_ISB_OSDROP, struct.pack("=Q", dropped))))
