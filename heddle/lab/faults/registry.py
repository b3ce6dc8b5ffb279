"""All kinds of faults. A new kind is a file beside this one and a line here. Those that are not listed come last."""

from __future__ import annotations

from typing import Final

from heddle.base.plugins import Registry
from heddle.lab.faults.bgpdown import BgpDown
from heddle.lab.faults.biterrors import BitErrors
from heddle.lab.faults.down import Down
from heddle.lab.faults.drain import Drain
from heddle.lab.faults.flap import Flap
from heddle.lab.faults.frozen import Frozen
from heddle.lab.faults.kind import NamedFault
from heddle.lab.faults.misroute import Misroute
from heddle.lab.faults.nodedown import NodeDown
from heddle.lab.faults.packets import Packets
from heddle.lab.faults.pfcstorm import PfcStorm
from heddle.lab.faults.slowlink import SlowHost, SlowLink
from heddle.spec.impairments import PACKETS

_KINDS: Final = (
    BgpDown(), BitErrors(), Flap(), SlowLink(), SlowHost(), NodeDown(), Frozen(), Misroute(), PfcStorm(), Packets(),
    Down(), Drain(),
)  # fmt: skip
KINDS: Final[Registry[NamedFault]] = Registry("fault", {kind.name: kind for kind in _KINDS}, NamedFault)
# Words of `./inv fault` and `run --fault`, each with the keys of its values; those of packets stand without a word.
KEYS: Final = {name: tuple(kind.settings) for name, kind in KINDS.items() if name != PACKETS}
