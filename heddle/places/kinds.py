"""The kinds of places. A new kind needs a file and one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from heddle.base.extras import SSH, require
from heddle.places.address import check_kind
from heddle.places.call import Place

HERE: Final = "here"


def _ssh(text: str, where: str) -> Place:
    from heddle.places.address import parse_address

    address = parse_address(text, where)  # mistakes in the address are reported first
    require(SSH)
    from heddle.places.session import SshPlace

    return SshPlace(address)


def _vm(text: str, where: str) -> Place:
    from heddle.places.vm.kernels import DEFAULT, kernel_named

    kernel = kernel_named(text.partition(":")[2] or DEFAULT, where, "place: vm:" if where else "--place vm:")
    require(SSH)
    from heddle.places.vm.place import VmPlace

    return VmPlace(kernel)


KINDS: Final[Mapping[str, Callable[[str, str], Place]]] = {"ssh": _ssh, "vm": _vm}


def place_named(text: str, where: str) -> Place | None:
    """The place that a text names, None for `here`; InputError for any other text. where: its file and line."""
    if text == HERE:
        return None
    return KINDS[check_kind(text, where, KINDS)](text, where)
