"""All kinds of faults that are set by name. A new kind is a file beside this one and a line here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from heddle.lab.faults.bgpdown import BgpDown
from heddle.lab.faults.kind import NamedFault
from heddle.lab.faults.slowlink import SlowLink

KINDS: Final[Mapping[str, NamedFault]] = {
    "bgp-down": BgpDown(),
    "slow-link": SlowLink(),
}
