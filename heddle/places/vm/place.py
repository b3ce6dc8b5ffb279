"""The guest as a place: it is started when a verb needs it, and stays until `vm down` or until nobody uses it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from heddle.base.problems import MachineError, Problem
from heddle.places.address import Address
from heddle.places.call import Call, Output
from heddle.places.session import SshPlace
from heddle.places.ssh import Target
from heddle.places.vm.guest import Guest, console_of, ensure_guest, find_guest
from heddle.places.vm.kernels import DEFAULT, Kernel
from heddle.places.vm.keys import HOST

_USER: Final = "root"


@dataclass(frozen=True, slots=True)
class GuestAddress(Address):
    """The guest of a kernel, which the user calls `vm` or `vm:stable`."""

    kernel: str = DEFAULT

    def __str__(self) -> str:
        """As `--place` takes it."""
        return "vm" if self.kernel == DEFAULT else f"vm:{self.kernel}"


@dataclass(frozen=True, slots=True)
class VmPlace:
    """A virtual machine with this kernel."""

    kernel: Kernel

    def run(self, call: Call, out: Output) -> int:
        """Run the verb there; the guest is started first, when it does not run."""
        guest = ensure_guest(self.kernel, out.observer)
        try:
            return ssh_place(guest).run(call, out)
        except MachineError as error:
            if find_guest(guest.kernel) is not None:
                raise
            said = console_of(guest.kernel)
            hint = f"the end of its console:\n{said}" if said else "./inv vm down ended it, or its machine"
            ended = Problem("", str(_address(guest)), f"ended while {call.verb} ran there; its labs went with it", hint)
            raise MachineError(ended) from error


def ssh_place(guest: Guest) -> SshPlace:
    """The way to a guest: its own key, and its own known host."""
    return SshPlace(_address(guest), _target(guest))


def _address(guest: Guest) -> GuestAddress:
    return GuestAddress(HOST, _USER, guest.port, guest.kernel)


def _target(guest: Guest) -> Target:
    keys = guest.keys
    return Target(HOST, HOST, guest.port, _USER, (keys.user_key,), only_these=True, known_hosts=(keys.known_hosts,))
