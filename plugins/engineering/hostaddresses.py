"""What `ip -j addr` or `ip addr` writes of a host: its interfaces, with their global addresses.

In:  the text. Out: interface -> HostInterface; InputError with file and line.
`ip -d` also writes the PCI device of an interface, by which NCCL's dump of a topology names it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import ip_interface
from typing import Final

from heddle.base.families import Interface
from heddle.base.problems import InputError, Problem, Problems, printable

_HEAD: Final = re.compile(r"\d+: ([^:@\s]+)(?:@[^:\s]+)?: <([^>]*)>")
_INET: Final = re.compile(r"\s+inet6? (\S+)(.*)")
_PCI: Final = re.compile(r"parentdev (\S+)")
_HINT: Final = "write it with ip -d -j addr"


@dataclass(slots=True)
class HostInterface:
    """An interface of a host. pci: its PCI device, as `0000:03:00.0`, if the text says it."""

    addresses: list[Interface] = field(default_factory=list)
    up: bool = True
    pci: str = ""


def address_of(text: str) -> Interface:
    """An address with its length. ValueError: `reason; hint`."""
    if "/" not in text:
        raise ValueError(f"has address {text}, without a mask; write it as {text}/24")
    try:
        return ip_interface(text)
    except ValueError:
        raise ValueError(f"has {text}, which is not an address; write it as 10.1.0.1/24") from None


def read_addresses(text: str, file: str) -> dict[str, HostInterface]:
    """Interface -> what `ip -j addr` or `ip addr` writes of it. Only global addresses count. InputError with lines."""
    if text.lstrip().startswith("["):
        return _of_json(text, file)
    found, problems, last = dict[str, HostInterface](), Problems(), HostInterface()
    for number, line in enumerate(text.splitlines(), 1):
        if head := _HEAD.match(line):
            last = found[printable(head[1], 32)] = HostInterface(up=_is_up(head[2].split(",")))
        elif (inet := _INET.match(line)) and " scope global" in inet[2]:
            try:
                last.addresses.append(address_of(inet[1]))
            except ValueError as error:
                problems.found.append(_problem(f"{file}:{number}", error))
        if pci := _PCI.search(line):
            last.pci = pci[1].lower()
    problems.raise_if_any()
    if not found:
        raise InputError(Problem(file, "the file", "is not the output of ip addr", _HINT))
    return found


def _is_up(flags: Sequence[str]) -> bool:
    return "UP" in flags and "NO-CARRIER" not in flags


def _of_json(text: str, file: str) -> dict[str, HostInterface]:
    found = dict[str, HostInterface]()
    try:
        for row in json.loads(text):
            if not row:
                continue  # as older versions write for interfaces that a filter leaves out
            flags = row.get("flags", ["UP"])
            link = found[printable(str(row["ifname"]), 32)] = HostInterface(
                up="UP" in flags and "NO-CARRIER" not in flags
            )
            link.pci = str(row.get("parentdev", "")).lower()
            for each in row.get("addr_info", ()):
                if each.get("scope") == "global":
                    length = f"/{each['prefixlen']}" if "prefixlen" in each else ""
                    link.addresses.append(address_of(f"{each['local']}{length}"))
    except json.JSONDecodeError as error:
        raise InputError(Problem(f"{file}:{error.lineno}", "the file", f"is not JSON: {error.msg}", _HINT)) from None
    except ValueError as error:
        raise InputError(_problem(file, error)) from None
    except (AttributeError, KeyError, TypeError, RecursionError):
        raise InputError(Problem(file, "the file", "is not the output of ip -j addr", _HINT)) from None
    return found


def _problem(where: str, error: ValueError) -> Problem:
    why, _, hint = str(error).partition("; ")
    return Problem(where, "the host", printable(why), printable(hint))
