"""The place that the user chose, and the kinds of places. A new kind needs a file and one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from heddle.base.extras import SSH, require
from heddle.places.address import check_kind
from heddle.places.call import Place
from heddle.places.config import config_path, read_config

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


def place_for(typed: str | None) -> Place | None:
    """The place that was typed (`--place`), else that of the config file; None: this machine.

    Raises InputError when the text names no place, or the config file is wrong.
    """
    if typed is not None:
        return place_named(typed, "")
    path = config_path()
    if path is None:
        return None
    config = read_config(path)
    return place_named(config.place, config.where("place"))
