"""The agent's loop in C: the same memory and sockets as the Python code uses, without Python per pause frame."""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress
from typing import Any, Final

import numpy as np

from heddle.base.ethernet import CLASSES
from heddle.base.problems import MachineError, Problem
from heddle.kernel.libbpf import library
from heddle.kernel.ringbuffer import open_ring
from heddle.switch.compiled import layouts as structs
from heddle.switch.pfc.loop import KINDS, Loop, Work, new_timer
from heddle.switch.pfc.rows import PfcPolicies, RowState
from heddle.switch.pfc.world import World

_ROOM: Final = 64


class CompiledLoop(Loop):
    """The loop in C. RowState and World outlive it; the maps stay mapped."""

    def __init__(self, code: ctypes.CDLL, world: World, rules: PfcPolicies, rows: RowState) -> None:
        super().__init__()
        self._code, self._world, self._rules = code, world, rules
        count = len(world.queues.agent)
        self._ports = (structs.PortStruct * (count // CLASSES))()
        self._gates = (structs.GateStruct * count)()
        self._pfc, self._quanta = np.zeros(count, np.uint8), np.zeros(count, np.uint32)
        self._detect_ns = np.zeros(count, np.int64)
        self._heap, self._position = ((ctypes.c_uint32 * (KINDS * count))() for _ in range(2))
        self._when = (ctypes.c_int64 * (KINDS * count))()
        self._works = (structs.WorkStruct * _ROOM)()
        # A signal that comes before the system call of a wait does not interrupt it: this pipe ends the wait.
        self._signals, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._core = core = structs.CoreStruct(rows=count, epoll=self._epoll.fileno(), timer=new_timer())
        self._fill(core, rows)
        callback = ctypes.cast(code.hd_pfc_event, ctypes.c_void_p).value
        self._ring = open_ring(world.queues.ring, callback, ctypes.addressof(core))
        core.ring, core.events_fd = self._ring, library().ring_buffer__epoll_fd(self._ring)
        self.rules_changed()
        for fd in (core.timer, core.events_fd, self._signals):
            self.add(fd)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)

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
        super().close()
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
