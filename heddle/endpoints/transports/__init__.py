"""Transports: how queue pairs carry messages. Each has a file, and a line in TRANSPORTS. See protocol.py."""

from __future__ import annotations

from typing import Final

from heddle.base.plugins import Registry
from heddle.base.problems import InputError, Problem, did_you_mean
from heddle.endpoints.transports.protocol import Transport
from heddle.endpoints.transports.rc import Rc
from heddle.endpoints.transports.rxe import Rxe
from heddle.endpoints.transports.scapy import Scapy
from heddle.endpoints.transports.srd import Srd
from heddle.endpoints.transports.uc import Uc

TRANSPORTS: Final[Registry[type[Transport]]] = Registry(
    "transport",
    {
        "rc": Rc,
        "uc": Uc,
        "srd": Srd,
        "rxe": Rxe,
        "scapy": Scapy,
    },
    Transport,
    classes=True,
)


def find_transport(name: str) -> type[Transport]:
    """The transport of that name; InputError with the nearest word when there is none."""
    found = TRANSPORTS.get(name)
    if found is None:
        hint = did_you_mean(name, TRANSPORTS)
        raise InputError(Problem("", f"--transport {name}", "is not a transport", hint))
    return found
