"""Commands of vtysh for one switch of several that share their daemons: each switch is a VRF there, with its name.

In:  a command as for a switch with daemons of its own. Out: the same command in the VRF.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

# FRR reads `vrf NAME` behind these words, and at the end of those.
_BEHIND: Final = re.compile(r"((?:do )?(?:(?:show|clear)(?: ip| ipv6)? bgp|show ipv?6? (?:route|nht)))(?=\s|$)")
_AT_END: Final = re.compile(r"(?:router bgp \d+|interface \S+|(?:do )?show interface.*)$")


def in_vrf(command: str, switch: str) -> str:
    """`show bgp summary` -> `show bgp vrf rtsw1 summary`. Commands that name a VRF, or need none, stay unchanged."""
    line = " ".join(command.split())
    if " vrf " in line:
        return command
    if _AT_END.match(line):
        return f"{line} vrf {switch}"
    return _BEHIND.sub(rf"\1 vrf {switch}", line, count=1) if _BEHIND.match(line) else command


def vtysh_in_vrf(argv: Sequence[str], switch: str) -> list[str]:
    """The argument list with the commands of vtysh (`-c`) in the VRF; that of another program unchanged."""
    words = list(argv)
    if words[:1] == ["vtysh"]:
        for at, word in enumerate(words[:-1]):
            if word == "-c":
                words[at + 1] = in_vrf(words[at + 1], switch)
    return words
