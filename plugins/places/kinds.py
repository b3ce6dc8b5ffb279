"""The kinds of places, as `--on` and the config file name them: `ssh:[user@]host[:port]`, `vm` and `vm:KERNEL`."""

from __future__ import annotations

from heddle.base.extras import SSH, require
from heddle.places.choice import Place, place_error
from heddle_plugins.places.address import parse_address


def ssh(text: str, where: str) -> Place:
    """A lab server. InputError for a wrong address, MachineError without the packages of the extra."""
    if ":" not in text:
        raise place_error(text, where, "is not a place")
    address = parse_address(text, where)  # mistakes in the address are reported first
    require(SSH)
    from heddle_plugins.places.session import SshPlace

    return SshPlace(address)


def vm(text: str, where: str) -> Place:
    """The VM of a kernel. InputError for an unknown kernel, MachineError without the packages of the extra."""
    from heddle_plugins.places.vm.recipe import DEFAULT, kernel_named

    kernel = kernel_named(text.partition(":")[2] or DEFAULT, where, "place: vm:" if where else "--on vm:")
    require(SSH)
    from heddle_plugins.places.vm.place import VmPlace

    return VmPlace(kernel)
