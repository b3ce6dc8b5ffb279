"""The PFC agent's loop in C (../compiled/): events, deadlines and descriptors; and its policies and pauses, by row.

All deadlines are on one kernel timer, in nanoseconds: epoll's own timeouts are whole milliseconds. The loop uses the
same memory and sockets as the Python code, without Python per pause frame. PfcPolicies has the active policies,
RowState the state of pauses, in plain arrays that the loop uses unchanged.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np

from heddle.base.ethernet import CLASSES, quanta_ns
from heddle.base.problems import MachineError, Problem
from heddle.kernel.libbpf import library, open_ring
from heddle.kernel.libc import libc
from heddle.switch.compiled import layouts as structs
from heddle.switch.pfc.world import World
from heddle.switch.queues.cells import REACTION_BINS, REACTION_STEP_NS

if TYPE_CHECKING:
    from heddle.switch.queues.cells import LabQueues

LOSSLESS: Final = 2  # `kind` in queue.h
PFC: Final = 4  # POLICY_PFC in queue.h
DROP: Final = 1  # WATCHDOG_DROP in queue.h; 2 is forward
NOT_WATCHED: Final = -1


def reaction_bin(reaction_ns: int) -> int:
    """The histogram bin of a reaction time: bin 0 ends at 62.5 us, and each next bin ends at twice the time."""
    return min(REACTION_BINS - 1, (reaction_ns // REACTION_STEP_NS).bit_length())


class PfcPolicies:
    """The active policies. Times in ns, quanta at the port's own rate."""

    def __init__(self, queues: LabQueues) -> None:
        self._queues = queues
        self._changes = -1
        rates = queues.links["rate"].tolist()
        self.quantum_ns = [quanta_ns(1 << 20, rate) / (1 << 20) if rate else 0.0 for rate in rates]  # by port
        self.pfc: list[bool] = []
        self.quanta: list[int] = []
        self.detect_ns: list[int] = []
        self.restore_ns: list[int] = []
        self.action: list[int] = []
        self.load()

    def load(self) -> bool:
        """Read the policies again if they have changed; return whether they have."""
        changes = self._queues.changes
        if changes == self._changes:
            return False
        self._changes = changes
        rows = self._queues.policies()
        self.pfc = ((rows["kind"] == LOSSLESS) & (rows["flags"] & PFC != 0)).tolist()
        self.quanta = rows["quanta"].tolist()
        self.detect_ns, self.restore_ns = rows["detect_ns"].tolist(), rows["restore_ns"].tolist()
        self.action = rows["action"].tolist()
        return True

    def pause_ns(self, index: int) -> int:
        """Duration of a pause that this port requests, in ns."""
        return int(self.quanta[index] * self.quantum_ns[index // CLASSES])


class RowState:
    """Times in ns of CLOCK_MONOTONIC, 0: none. It ends with the process: another agent rebuilds it from the maps.

    asked: the port of this row has sent a pause frame, and a deadline repeats it. For a closed gate, checked: its
    deadline; arrived: when its pause frame came; shut: when it was closed; waiting: since when packets wait, 0 when
    none did at the last check, NOT_WATCHED when the watchdog does not look. heard: the last pause frame. storming: the
    watchdog ignores pause frames.
    """

    def __init__(self, rows: int) -> None:
        self.asked, self.storming = (ctypes.c_uint8 * rows)(), (ctypes.c_uint8 * rows)()
        self.heard, self.waiting = (ctypes.c_int64 * rows)(), (ctypes.c_int64 * rows)(*[NOT_WATCHED] * rows)
        self.checked, self.arrived, self.shut = ((ctypes.c_int64 * rows)() for _ in range(3))
        self._asked, self._storming = np.ctypeslib.as_array(self.asked), np.ctypeslib.as_array(self.storming)

    def asking(self) -> list[int]:
        """The rows whose ports have requested a pause that has not ended."""
        return np.flatnonzero(self._asked).tolist()

    def storms(self) -> list[int]:
        """The rows of which the watchdog ignores pause frames."""
        return np.flatnonzero(self._storming).tolist()


# Kinds of deadlines. The loop handles the first two itself, and sets DETECT, too.
REFRESH, EXPIRE, DETECT, RESTORE, LINK, TICK, RELOAD = range(7)
_KINDS: Final = 7
_ROOM: Final = 64
_CLOCK_MONOTONIC: Final = 1
_NONBLOCK_CLOEXEC: Final = os.O_NONBLOCK | os.O_CLOEXEC


def new_timer() -> int:
    """A timer of the kernel on CLOCK_MONOTONIC: a descriptor, readable after it has expired. OSError without one."""
    fd = int(libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC))
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return fd


def loop_code() -> ctypes.CDLL:
    """The compiled object; MachineError when it cannot be used here."""
    code = structs.load()
    if isinstance(code, str):
        hint = "install Heddle again, or use a complete checkout"
        raise MachineError(Problem("", "the PFC agent", f"cannot run here: {code}", hint))
    return code


class Deadlines(Protocol):
    """What the agent's parts need of the loop."""

    def push(self, when: int, kind: int, index: int) -> None:
        """Set a deadline, in place of an earlier one of the same kind and index."""

    def cancel(self, kind: int, index: int) -> None:
        """Remove a deadline, if there is one."""


class Work(NamedTuple):
    """Something for the agent to do: fd is readable; or, when it is -1, a deadline of that kind and row has passed."""

    fd: int
    kind: int
    row: int


class CompiledLoop:
    """Deadlines, events and descriptors of one agent, in C. RowState and World outlive it; the maps stay mapped."""

    def __init__(self, world: World, rules: PfcPolicies, rows: RowState) -> None:
        self._epoll = select.epoll()
        self._code, self._world, self._rules = loop_code(), world, rules
        count = len(world.queues.agent)
        self._ports = (structs.PortStruct * (count // CLASSES))()
        self._gates = (structs.GateStruct * count)()
        self._pfc, self._quanta = np.zeros(count, np.uint8), np.zeros(count, np.uint32)
        self._detect_ns = np.zeros(count, np.int64)
        self._heap, self._position = ((ctypes.c_uint32 * (_KINDS * count))() for _ in range(2))
        self._when = (ctypes.c_int64 * (_KINDS * count))()
        self._works = (structs.WorkStruct * _ROOM)()
        # A signal that comes before the system call of a wait does not interrupt it: this pipe ends the wait.
        self._signals, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._core = core = structs.CoreStruct(rows=count, epoll=self._epoll.fileno(), timer=new_timer())
        self._fill(core, rows)
        callback = ctypes.cast(self._code.hd_pfc_event, ctypes.c_void_p).value
        self._ring = open_ring(world.queues.ring, callback, ctypes.addressof(core))
        core.ring, core.events_fd = self._ring, library().ring_buffer__epoll_fd(self._ring)
        self.rules_changed()
        for fd in (core.timer, core.events_fd, self._signals):
            self.add(fd)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)

    def add(self, fd: int) -> None:
        """Report when this descriptor is readable."""
        self._epoll.register(fd, select.EPOLLIN)

    def remove(self, fd: int) -> None:
        """Report it no more; do it before it is closed."""
        self._epoll.unregister(fd)

    def push(self, when: int, kind: int, index: int) -> None:
        """Set a deadline, in place of an earlier one of the same kind and index."""
        self._code.hd_pfc_push(self._core, kind, index, when)

    def cancel(self, kind: int, index: int) -> None:
        """Remove a deadline, if there is one."""
        self._code.hd_pfc_cancel(self._core, kind, index)

    def wait(self) -> list[Work]:
        """Handle events, REFRESH and EXPIRE until there is other work; return that. Empty when a signal came."""
        count = self._code.hd_pfc_wait(self._core, self._works, _ROOM)
        if count < 0:
            ring, epoll = ("the ring of events", "cannot be read"), ("epoll", os.strerror(ctypes.get_errno()))
            raise MachineError(Problem("bpf", *(ring if count == -1 else epoll)))
        works = [Work(each.fd, each.kind, each.row) for each in self._works[:count]]
        if any(each.fd == self._signals for each in works):
            with suppress(BlockingIOError):
                os.read(self._signals, 4096)
        return [each for each in works if each.fd != self._signals]

    def rules_changed(self) -> None:
        """Use the rules as they are now."""
        rules = self._rules
        self._pfc[:], self._quanta[:], self._detect_ns[:] = rules.pfc, rules.quanta, rules.detect_ns

    def forget(self, node: str) -> None:
        """Use the sockets of this node no more."""
        for number, port in self._world.ports.items():
            if port.node == node:
                self._ports[number].control = -1
                for gate in self._gates[number * CLASSES : (number + 1) * CLASSES]:
                    gate.netlink = -1

    def close(self) -> None:
        """Close its own descriptors."""
        signal.set_wakeup_fd(-1)
        library().ring_buffer__free(self._ring)
        self._epoll.close()
        for fd in (self._signals, self._wake, self._core.timer):
            os.close(fd)

    def _fill(self, core: structs.CoreStruct, rows: RowState) -> None:
        queues, world = self._world.queues, self._world
        core.consume = ctypes.cast(library().ring_buffer__consume, ctypes.c_void_p)
        core.heartbeat = ctypes.addressof(world.page)
        for name in ("ports", "gates", "heap", "position", "when"):
            setattr(core, name, ctypes.addressof(getattr(self, f"_{name}")))
        for name in ("pfc", "quanta", "detect_ns"):
            setattr(core, name, getattr(self, f"_{name}").ctypes.data)
        for name in ("asked", "storming", "heard", "waiting", "checked", "arrived", "shut"):
            setattr(core, name, ctypes.addressof(getattr(rows, name)))
        tables: dict[str, Any] = dict.fromkeys(structs.FIELDS, queues.agent)
        tables |= {"state": queues.ingress, "depth": queues.cells, "last_out_ns": queues.cells}
        tables |= {"since_ns": queues.gates}
        for name, table in tables.items():
            view = table["spare" if name == "histogram" else name]
            setattr(core, name, structs.FieldStruct(view.ctypes.data, view.strides[0]))
        for gate in self._gates:
            gate.netlink = gate.kicker = -1
        for entry in self._ports:
            entry.control = -1
        for number, port in world.ports.items():
            space, entry = world.spaces.get(port.node), self._ports[number]
            entry.quantum_ns = self._rules.quantum_ns[number]
            if space is not None:
                entry.control = space.control.fileno()
                entry.address[:], entry.mac[:] = space.addresses[port.name], space.macs[port.name]
        for index, (space, name, number) in world.gates.items():
            gate, messages = self._gates[index], space.gates[name, number]
            gate.netlink, gate.kicker = space.netlink.fileno(), space.kicker.fileno()
            gate.opening_bytes, gate.closing_bytes = len(messages.opening), len(messages.closing)
            gate.opening[: len(messages.opening)] = messages.opening
            gate.closing[: len(messages.closing)] = messages.closing
            gate.address[:] = space.addresses[name]
            core.kick_bytes = len(space.kick_frame)
            core.kick[: len(space.kick_frame)] = space.kick_frame
