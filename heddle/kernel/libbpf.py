"""A thin layer over the system's libbpf: the public functions that Heddle needs, by ctypes.

In:  built objects (`bpf/*.o`), paths below /sys/fs/bpf.
Out: Object (an ELF file being loaded), Map and Program (file descriptors that their owner closes).
Calls release the interpreter lock, so switches load in parallel. Errors are MachineErrors with a hint.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Self

from heddle.base.problems import MachineError, Problem
from heddle.kernel.libc import libc

BPFFS: Final = Path("/sys/fs/bpf")
_BPF_ANY: Final = 0
_LOG_BYTES: Final = 1 << 16
_BATCH: Final = 4096
_DENIED: Final = "this needs root (CAP_BPF and CAP_NET_ADMIN); in a container also a seccomp profile that allows bpf(2)"
# BPF functions with pointer arguments exist since 5.12, the hash fields of a fabric file since 5.14.
_NEEDS: Final = "use Linux 5.15 or newer, with CONFIG_BPF_JIT"


class _OpenOptions(ctypes.Structure):
    """struct bpf_object_open_opts of libbpf 1.0."""

    _fields_ = [
        ("sz", ctypes.c_size_t),
        ("object_name", ctypes.c_char_p),
        ("relaxed_maps", ctypes.c_bool),
        ("pin_root_path", ctypes.c_char_p),
        ("stub", ctypes.c_uint32),
        ("kconfig", ctypes.c_char_p),
        ("btf_custom_path", ctypes.c_char_p),
        ("kernel_log_buf", ctypes.c_void_p),
        ("kernel_log_size", ctypes.c_size_t),
        ("kernel_log_level", ctypes.c_uint32),
    ]


_SIGNATURES: Final[dict[str, tuple[Any, ...]]] = {  # result, arguments
    "bpf_object__open_file": (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p),
    "bpf_object__load": (ctypes.c_int, ctypes.c_void_p),
    "bpf_object__close": (None, ctypes.c_void_p),
    "bpf_object__find_program_by_name": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p),
    "bpf_object__find_map_by_name": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p),
    "bpf_program__fd": (ctypes.c_int, ctypes.c_void_p),
    "bpf_map__fd": (ctypes.c_int, ctypes.c_void_p),
    "bpf_map__set_max_entries": (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32),
    "bpf_obj_pin": (ctypes.c_int, ctypes.c_int, ctypes.c_char_p),
    "bpf_obj_get": (ctypes.c_int, ctypes.c_char_p),
    "bpf_map_lookup_elem": (ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p),
    "bpf_map_update_elem": (ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64),
    "bpf_map_delete_elem": (ctypes.c_int, ctypes.c_int, ctypes.c_char_p),
    "bpf_map_get_next_key": (ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p),
    "bpf_obj_get_info_by_fd": (ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p),
    "bpf_map_lookup_batch": (ctypes.c_int, ctypes.c_int, *[ctypes.c_void_p] * 6),
    "bpf_map_lookup_and_delete_batch": (ctypes.c_int, ctypes.c_int, *[ctypes.c_void_p] * 6),
    "bpf_map__reuse_fd": (ctypes.c_int, ctypes.c_void_p, ctypes.c_int),
    "ring_buffer__new": (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p),
    "ring_buffer__consume": (ctypes.c_int, ctypes.c_void_p),
    "ring_buffer__epoll_fd": (ctypes.c_int, ctypes.c_void_p),
    "ring_buffer__free": (None, ctypes.c_void_p),
    "bpf_prog_test_run_opts": (ctypes.c_int, ctypes.c_int, ctypes.c_void_p),
    "libbpf_num_possible_cpus": (ctypes.c_int,),
    "libbpf_set_print": (ctypes.c_void_p, ctypes.c_void_p),
}


@cache
def library() -> ctypes.CDLL:
    """Load the system's libbpf, preferring version 1 to 0; MachineError when there is none."""
    for name in ("libbpf.so.1", "libbpf.so.0"):
        try:
            found = ctypes.CDLL(name, use_errno=True)
        except OSError:
            continue
        for function, (result, *arguments) in _SIGNATURES.items():
            try:
                entry = getattr(found, function)
            except AttributeError:
                raise MachineError(Problem("", name, f"is too old: it has no {function}", _INSTALL)) from None
            entry.restype, entry.argtypes = result, arguments
        if name.endswith("0"):
            found.libbpf_set_strict_mode(0x3)  # CLEAN_PTRS, DIRECT_ERRS: errors as libbpf 1 reports them
        found.libbpf_set_print(None)  # errors are in the exception, not on stderr
        return found
    raise MachineError(Problem("", "libbpf.so.1", "is not installed", _INSTALL))


_INSTALL: Final = "run apt-get install libbpf1 (libbpf0 on older systems)"


def ensure_bpffs() -> None:
    """Mount the BPF file system at /sys/fs/bpf if it is not mounted, as iproute2 does."""
    with Path("/proc/self/mountinfo").open(errors="replace") as mounts:
        for line in mounts:
            before, _, after = line.partition(" - ")
            if before.split()[4] == str(BPFFS) and after.split()[0] == "bpf":
                return
    hint = f"run mount -t bpf bpf {BPFFS}"
    if not BPFFS.is_dir():
        raise MachineError(Problem("", str(BPFFS), "is missing: sysfs or BPF is not in this kernel", hint))
    if libc.mount(b"bpf", str(BPFFS).encode(), b"bpf", ctypes.c_ulong(0), b"mode=0700") != 0:
        raise MachineError(Problem("", str(BPFFS), f"cannot be mounted: {os.strerror(ctypes.get_errno())}", hint))


def failed(what: str, why: str, detail: str = "", otherwise: str = "") -> MachineError:
    """The error for the errno that libbpf has set. otherwise: the hint if the errno has none of its own."""
    code = ctypes.get_errno()
    said = f"{why}: {os.strerror(code)}" + (f"\n{detail}" if detail else "")
    # EACCES with a log is the verifier's refusal; without one it is a pin that only root may open.
    denied = code == errno.EPERM or (code == errno.EACCES and not detail)
    hint = _DENIED if denied else otherwise
    if code == errno.ENOENT and what.startswith(str(BPFFS)):
        hint = "run ./inv down, then ./inv up"
    if code == errno.ENOMEM:
        hint = "raise the locked-memory limit: run ulimit -l unlimited"
    return MachineError(Problem("bpf", what, said, hint))


class _Descriptor:
    """A file descriptor, owned or borrowed."""

    def __init__(self, fd: int, owned: bool) -> None:
        self.fd = fd
        self._owned = owned

    def close(self) -> None:
        """Close it, once, if it is owned (an Object owns its own descriptors)."""
        if self._owned and self.fd >= 0:
            os.close(self.fd)
        self.fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def pin(self, path: Path) -> None:
        """Pin it below /sys/fs/bpf, so that it outlives this process; MachineError if the path exists."""
        if library().bpf_obj_pin(self.fd, os.fsencode(path)) != 0:
            raise failed(str(path), "cannot be pinned")


def _get(path: Path) -> int:
    fd = int(library().bpf_obj_get(os.fsencode(path)))
    if fd < 0:
        raise failed(str(path), "cannot be opened")
    return fd


class Map(_Descriptor):
    """A BPF map. Sizes in bytes; with per_cpu a value has one slot (a multiple of 8 bytes) for each possible CPU."""

    def __init__(self, fd: int, key_size: int, value_size: int, *, per_cpu: bool = False, owned: bool = False) -> None:
        super().__init__(fd, owned)
        self.key_size = key_size
        self.value_size = (value_size + 7 & ~7) * int(library().libbpf_num_possible_cpus()) if per_cpu else value_size

    @classmethod
    def pinned(cls, path: Path, key_size: int, value_size: int, *, per_cpu: bool = False) -> Self:
        """Open a pinned map; the caller closes it. MachineError when the path has no pin."""
        return cls(_get(path), key_size, value_size, per_cpu=per_cpu, owned=True)

    def lookup(self, key: bytes) -> bytes | None:
        """The value of `key`, or None."""
        value = ctypes.create_string_buffer(self.value_size)
        if library().bpf_map_lookup_elem(self.fd, self._key(key), value) == 0:
            return value.raw
        if ctypes.get_errno() == errno.ENOENT:
            return None
        raise failed("map", "cannot be read")

    def update(self, key: bytes, value: bytes) -> None:
        """Write one value."""
        if len(value) != self.value_size:
            raise ValueError(f"a value of {len(value)} bytes for a map of {self.value_size}")
        if library().bpf_map_update_elem(self.fd, self._key(key), value, _BPF_ANY) != 0:
            raise failed("map", "cannot be written")

    def delete(self, key: bytes) -> bool:
        """Remove one key; False when the map does not contain it."""
        if library().bpf_map_delete_elem(self.fd, self._key(key)) == 0:
            return True
        if ctypes.get_errno() == errno.ENOENT:
            return False
        raise failed("map", "cannot be written")

    def all_keys(self) -> list[bytes]:
        """All keys, with a system call for each: for small tables, and tries (no batches for them in older kernels)."""
        found: list[bytes] = []
        after = ctypes.create_string_buffer(self.key_size)
        while library().bpf_map_get_next_key(self.fd, found[-1] if found else None, after) == 0:
            found.append(after.raw)
        if ctypes.get_errno() != errno.ENOENT:
            raise failed("map", "cannot be read")
        return found

    def max_entries(self) -> int:
        """The capacity of the map, in entries."""
        info = (ctypes.c_uint32 * 5)()  # struct bpf_map_info: type, id, key_size, value_size, max_entries
        size = ctypes.c_uint32(ctypes.sizeof(info))
        if library().bpf_obj_get_info_by_fd(self.fd, info, ctypes.byref(size)) != 0:
            raise failed("map", "does not report its size")
        return int(info[4])

    def memory(self) -> mmap.mmap:
        """All values of a mappable array (BPF_F_MMAPABLE) as writable memory, each value rounded up to 8 bytes.

        The mapping outlives the descriptor. MachineError when the kernel refuses.
        """
        size = self.max_entries() * (self.value_size + 7 & ~7)
        try:
            return mmap.mmap(self.fd, size)
        except OSError as error:
            raise MachineError(Problem("bpf", "map", f"cannot be mapped into memory: {error.strerror}")) from None

    def items(self) -> tuple[bytes, bytes]:
        """All keys and all values, each as one byte string; needs only a few system calls for any number of entries."""
        return self._batches("bpf_map_lookup_batch")

    def drain(self) -> tuple[bytes, bytes]:
        """The same for a hash, and remove all its entries."""
        return self._batches("bpf_map_lookup_and_delete_batch")

    def _batches(self, call: str) -> tuple[bytes, bytes]:
        keys: list[bytes] = []
        values: list[bytes] = []
        size = max(4, self.key_size)
        position, after = ctypes.create_string_buffer(size), ctypes.create_string_buffer(size)
        room, first, ended = _BATCH, True, False
        while not ended:
            key_buffer = ctypes.create_string_buffer(room * self.key_size)
            value_buffer = ctypes.create_string_buffer(room * self.value_size)
            count = ctypes.c_uint32(room)
            at = None if first else position
            code = getattr(library(), call)(self.fd, at, after, key_buffer, value_buffer, ctypes.byref(count), None)
            reason = ctypes.get_errno() if code != 0 else 0
            if reason == errno.ENOSPC:  # one bucket holds more entries than the buffer
                room *= 2
                continue
            if reason not in (0, errno.ENOENT):
                raise failed("map", "cannot be read in a batch")
            keys.append(key_buffer.raw[: count.value * self.key_size])
            values.append(value_buffer.raw[: count.value * self.value_size])
            position, after, first, ended = after, position, False, reason == errno.ENOENT
        return b"".join(keys), b"".join(values)

    def _key(self, key: bytes) -> bytes:
        if len(key) != self.key_size:
            raise ValueError(f"a key of {len(key)} bytes for a map of {self.key_size}")
        return key


class Program(_Descriptor):
    """A loaded BPF program."""

    @classmethod
    def pinned(cls, path: Path) -> Self:
        """Open a pinned program; the caller closes it. MachineError when the path has no pin."""
        return cls(_get(path), True)


class Object:
    """An ELF object to be loaded into the kernel: open, adjust, load, pin, close. `close` frees all but the pins."""

    def __init__(self, path: Path) -> None:
        self._name = path.name
        self._log = ctypes.create_string_buffer(_LOG_BYTES)
        options = None
        if hasattr(library(), "libbpf_major_version"):  # since 1.0; libbpf 0.5 does not have the log fields
            opened = _OpenOptions(sz=ctypes.sizeof(_OpenOptions), kernel_log_size=_LOG_BYTES)
            opened.kernel_log_buf = ctypes.addressof(self._log)
            options = ctypes.byref(opened)
        self._object: int | None = library().bpf_object__open_file(os.fsencode(path), options)
        if not self._object:
            raise failed(str(path), "cannot be opened as a BPF object")

    def load(self) -> None:
        """Create its maps and load its programs; MachineError with the end of the verifier's log."""
        if library().bpf_object__load(self._object) != 0:
            log = self._log.value.decode(errors="replace").strip().splitlines()
            raise failed(self._name, "was refused by the kernel", "\n".join(log[-12:]), _NEEDS)

    def set_max_entries(self, name: str, entries: int) -> None:
        """Set the size of a map, before `load`."""
        if library().bpf_map__set_max_entries(self._find("map", name), entries) != 0:
            raise failed(f"{self._name}: {name}", "cannot be given a size")

    def reuse(self, name: str, existing: Map) -> None:
        """Use an existing map in place of a map of this object, before `load`."""
        if library().bpf_map__reuse_fd(self._find("map", name), existing.fd) != 0:
            raise failed(f"{self._name}: {name}", "cannot be shared")

    def map(self, name: str, key_size: int, value_size: int, *, per_cpu: bool = False) -> Map:
        """A map of a loaded object; valid until `close`."""
        fd = int(library().bpf_map__fd(self._find("map", name)))
        return Map(fd, key_size, value_size, per_cpu=per_cpu)

    def program(self, name: str) -> Program:
        """A program of a loaded object; valid until `close`."""
        return Program(int(library().bpf_program__fd(self._find("program", name))), False)

    def close(self) -> None:
        """Free the object and its descriptors."""
        if self._object:
            library().bpf_object__close(self._object)
        self._object = None

    def _find(self, kind: str, name: str) -> int:
        found = getattr(library(), f"bpf_object__find_{kind}_by_name")(self._object, name.encode())
        if not found:
            raise failed(f"{self._name}: {name}", f"is not a {kind} of this object")
        return int(found)


@contextmanager
def loaded(
    path: Path, sizes: dict[str, int] | None = None, shared: Mapping[str, Map] | None = None
) -> Iterator[Object]:
    """A loaded object, for the duration of a with block.

    sizes: map name -> max entries. shared: map name -> an existing map to be used in its place.
    """
    found = Object(path)
    try:
        for name, existing in (shared or {}).items():
            found.reuse(name, existing)
        for name, entries in (sizes or {}).items():
            found.set_max_entries(name, entries)
        found.load()
        yield found
    finally:
        found.close()


# xoff, xon: the occupancy of an ingress port crossed a threshold: its peer must pause or resume. pfc: a pause frame.
KINDS: Final = {1: "xoff", 2: "xon", 3: "pfc"}


def open_ring(ring: Map, callback: Any, context: int | None) -> int:
    """Map a ring buffer into memory: a handle of libbpf. callback: int (context, data, size), for each event.

    The caller keeps the callback alive, and frees the handle. Only one process at a time may read.
    """
    found = library().ring_buffer__new(ring.fd, callback, context, None)
    if not found:
        raise MachineError(Problem("bpf", "the ring of events", "cannot be mapped into memory"))
    return int(found)


_SK_BUFF: Final = 256  # at least sizeof(struct __sk_buff); bytes beyond the kernel's size must be zero
_MARK: Final = 8
_PRIORITY: Final = 32
_INGRESS_IFINDEX: Final = 36
_IFINDEX: Final = 40
_CB: Final = slice(48, 68)  # __u32 cb[5]


class _TestRunOptions(ctypes.Structure):
    """struct bpf_test_run_opts."""

    _fields_ = [
        ("sz", ctypes.c_size_t),
        ("data_in", ctypes.c_char_p),
        ("data_out", ctypes.c_void_p),
        ("data_size_in", ctypes.c_uint32),
        ("data_size_out", ctypes.c_uint32),
        ("ctx_in", ctypes.c_void_p),
        ("ctx_out", ctypes.c_void_p),
        ("ctx_size_in", ctypes.c_uint32),
        ("ctx_size_out", ctypes.c_uint32),
        ("retval", ctypes.c_uint32),
        ("repeat", ctypes.c_int),
        ("duration", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("cpu", ctypes.c_uint32),
        ("batch_size", ctypes.c_uint32),
    ]


@dataclass(frozen=True, slots=True)
class TestRun:
    """The result of one run: the return value, and skb->cb, frame and skb->priority after it; nanoseconds per run."""

    __test__ = False  # not a test class, despite its name

    retval: int
    cb: tuple[int, int, int, int, int]
    nanoseconds: int
    frame: bytes
    priority: int = 0


def run_on(
    program: Program,
    frame: bytes,
    *,
    ifindex: int = 0,
    cb: tuple[int, ...] = (),
    repeat: int = 1,
    counted: bool = False,
    mark: int = 0,
) -> TestRun:
    """Run a program on a frame (from its Ethernet header, at least 14 bytes).

    ifindex: the ingress port, in the namespace of the calling thread; 0: the loopback device.
    counted: include the run in the statistics of `hash`, like a packet. cb, mark: their values in the context.
    A frame for another MAC than the port's is PACKET_OTHERHOST, for the kernel and for our programs.
    MachineError when the kernel refuses.
    """
    context = ctypes.create_string_buffer(_SK_BUFF)
    words = {_IFINDEX: ifindex, _INGRESS_IFINDEX: ifindex * counted, _MARK: mark}
    words |= {_CB.start + 4 * index: word for index, word in enumerate(cb)}
    for offset, word in words.items():
        ctypes.c_uint32.from_buffer(context, offset).value = word
    result = ctypes.create_string_buffer(_SK_BUFF)
    options = _TestRunOptions(sz=ctypes.sizeof(_TestRunOptions), data_in=frame, data_size_in=len(frame))
    options.ctx_in, options.ctx_size_in = ctypes.addressof(context), _SK_BUFF
    options.ctx_out, options.ctx_size_out = ctypes.addressof(result), _SK_BUFF
    after = ctypes.create_string_buffer(len(frame))
    options.data_out, options.data_size_out = ctypes.addressof(after), len(frame)
    options.repeat = repeat
    if library().bpf_prog_test_run_opts(program.fd, ctypes.byref(options)) != 0:
        raise failed("program", "cannot be test-run")
    left = (ctypes.c_uint32 * 5).from_buffer_copy(result.raw[_CB])
    cells = (left[0], left[1], left[2], left[3], left[4])
    priority = ctypes.c_uint32.from_buffer(result, _PRIORITY).value
    return TestRun(int(options.retval), cells, int(options.duration), after.raw[: options.data_size_out], priority)
