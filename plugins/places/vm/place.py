"""The guest as a place: it starts when a verb needs it, and runs until `vm down` or until no verb uses it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from heddle.base.problems import MachineError, Problem
from heddle.host import packages
from heddle.places.choice import Call, Output
from heddle_plugins.places.address import Address
from heddle_plugins.places.session import SshPlace
from heddle_plugins.places.ssh import Target
from heddle_plugins.places.vm import qemu
from heddle_plugins.places.vm.guest import Guest, ensure_guest, find_guest, guest_dir, needed_packages
from heddle_plugins.places.vm.qemu import HOST
from heddle_plugins.places.vm.recipe import DEFAULT, Kernel, place_name

_USER: Final = "root"


@dataclass(frozen=True, slots=True)
class GuestAddress(Address):
    """The guest of a kernel, which the user names `vm` or `vm:stable`."""

    kernel: str = DEFAULT

    def __str__(self) -> str:
        """As `--on` takes it."""
        return place_name(self.kernel)


@dataclass(frozen=True, slots=True)
class VmPlace:
    """A virtual machine with this kernel."""

    kernel: Kernel

    def run(self, call: Call, out: Output) -> int:
        """Run the verb there; the guest is started first, when it does not run, and what that needs is installed."""
        if find_guest(self.kernel.name) is None:
            again = f"run ./inv vm up --kernel {self.kernel.name} --yes"
            packages.ensure(
                needed_packages(self.kernel), yes=call.yes, ask=out.confirm, say=out.observer.say, again=again
            )
        guest = ensure_guest(self.kernel, out.observer)
        try:
            return ssh_place(guest).run(call, out)
        except MachineError as error:
            raise _cause(guest, call) or error from None


def ssh_place(guest: Guest) -> SshPlace:
    """A connection to a guest, with its own key and its own known host."""
    keys, port = guest.keys, guest.port
    target = Target(HOST, HOST, port, _USER, (keys.user_key,), only_these=True, known_hosts=(keys.known_hosts,))
    return SshPlace(_address(guest), target)


def _cause(guest: Guest, call: Call) -> MachineError | None:
    """Why the connection to a guest broke, if the guest itself is the cause."""
    what, directory = str(_address(guest)), guest_dir(guest.kernel)
    if find_guest(guest.kernel) is None:
        console = qemu.tail_of(directory)
        hint = f"the end of its console:\n{console}" if console else "./inv vm down ended it, or another process"
        if qemu.ran_old_code(directory):
            hint = f"probably a race of QEMU between two processors; run it again, or use vm up --cpus 1\n{hint}"
        return MachineError(Problem("", what, f"ended while {call.verb} ran there; its labs are gone", hint))
    if qemu.status(directory) == qemu.IO_ERROR:
        why = f"is paused: the disk of {directory} is full, and the VM writes there"
        return MachineError(Problem("", what, why, "free some space there; the next verb with --on resumes the VM"))
    return None


def _address(guest: Guest) -> GuestAddress:
    return GuestAddress(HOST, _USER, guest.port, guest.kernel)
