"""The bytes of queue pairs that spray: packets use the source ports of their queue pair in turn.

In:  the packets of messages, and their order.
Out: Sprayed: the bytes by source port of a sequence of messages that begins with the first port.
A message begins with the port after that of the packet before it, so bytes depend on the order of messages. With P
ports, a sequence of n packets moves what follows by n mod P ports. So n equal messages take log2(n) steps.
Source: transports/srd.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from heddle.base.arrays import I64


@dataclass(frozen=True)
class Sprayed:
    """wire: bytes of frames, of shape (..., ports). packets: their number, or one that is equal modulo the ports."""

    wire: I64
    packets: I64

    def then(self, later: Sprayed) -> Sprayed:
        """This sequence, and a later one of the same queue pairs."""
        ports = self.wire.shape[-1]
        begin, wire = np.broadcast_arrays((self.packets % ports)[..., None], later.wire)
        moved = np.take_along_axis(wire, (np.arange(ports) - begin) % ports, axis=-1)
        return Sprayed(self.wire + moved, (self.packets + later.packets) % ports)

    def times(self, number: I64) -> Sprayed:
        """This sequence, a number of times. number: shape of `packets`, or one that broadcasts with it."""
        many, power = Sprayed(np.zeros_like(self.wire), np.zeros_like(self.packets)), self
        while (number > 0).any():
            odd, more = number % 2 == 1, many.then(power)
            many = Sprayed(np.where(odd[..., None], more.wire, many.wire), np.where(odd, more.packets, many.packets))
            number, power = number // 2, power.then(power)
        return many


def of_messages(packets: I64, full: int, total: I64, ports: int) -> Sprayed:
    """One message of each element. packets: of the message; full: bytes of each but the last; total: bytes of all."""
    before, number = np.maximum(packets - 1, 0), np.arange(ports)
    wire = np.maximum(-(-(before[..., None] - number) // ports), 0) * full
    last = number == before[..., None] % ports
    return Sprayed(wire + np.where(last, (total - before * full)[..., None], 0), packets)


def in_turn(lengths: I64, of_length: Callable[[int], Sprayed]) -> Sprayed:
    """The sequence of messages of these lengths. of_length: a message of one length; all results have one shape."""
    begins = np.flatnonzero(np.diff(lengths, prepend=-1))
    runs = np.diff(np.append(begins, len(lengths)))
    found: dict[int, Sprayed] = {}
    whole = of_length(0)
    for begin, run in zip(begins.tolist(), runs, strict=True):
        length = int(lengths[begin])
        if length not in found:
            found[length] = of_length(length)
        whole = whole.then(found[length].times(run[None]) if run > 1 else found[length])
    return whole
