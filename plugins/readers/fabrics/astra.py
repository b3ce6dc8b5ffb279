"""ASTRA-sim's analytical network: a list of logical dimensions, each with a rate and a latency of its own.

Source: common/ of astra-sim/astra-network-analytical: bandwidth in units of 2^30 bytes/s for each NPU and direction,
latency in ns of one link; from one NPU to another over a Switch it is counted twice. Dimension 1 has the nearest NPUs.
"""

from __future__ import annotations

from typing import Final

from heddle.base.problems import InputError, Problem
from heddle.fabric.fabricfile import LoadedFabric
from heddle_plugins.readers.fabrics.own import hardware, own_line

_LIMITS: Final = """\
# This format cannot express paths and their choice (ECMP, hashing), queues, PFC, ECN, and links that NPUs share.
# So the rate of a dimension is one NPU's share of the uplinks, and no other NPU can use it while it is free.
# The latency of a dimension is that of all links from an NPU to the switch of that tier.
# Links inside a host (NVLink) are not in the fabric: add a first dimension for them."""


def network(loaded: LoadedFabric) -> tuple[str, str]:
    """The file's name and text. InputError for planes, between which NPUs have no path."""
    fabric, spec = loaded.fabric, loaded.spec
    links = [*hardware(loaded)]
    if getattr(spec, "planes", 1) > 1:
        why = "cannot be dimensions, since NPUs of different planes have no path"
        raise InputError(Problem("", "planes", why, "render each plane: --set planes=1, with its NICs and spines"))
    nics = len(fabric.nics)
    rate = [sum(link.rate_bps for link in links if link.tier == level) / nics for level in range(3)]
    delay = [max((link.delay_ns for link in links if link.tier == level), default=0) for level in range(3)]
    low, high, tree = min(rate[:2]), min(rate), spec.shape == "fat-tree"
    if spec.shape == "rail":
        each, hosts, pods = (getattr(spec, key) for key in ("nics_per_host", "hosts_per_pod", "pods"))
        dims = [(each, low, sum(delay[:2])), (hosts, rate[0], delay[0]), (pods, low, sum(delay[:2]))]
        words = ["NICs of a host, over spines", "hosts of a pod, over a leaf", "pods, over spines"]
    else:
        zones, racks = (getattr(spec, key) for key in (("radix", "half") if tree else ("zones", "racks")))
        dims = [(nics // (zones * racks), rate[0], delay[0]), (racks, low, sum(delay[:2])), (zones, high, sum(delay))]
        words = ["NICs of a rack, over its RTSW", "racks of a zone, over CTSWs", "zones, over ATSWs"]
        words = ["NICs of an edge switch", "edge switches of a pod", "pods, over cores"] if tree else words
    used = [n for n, (count, _, _) in enumerate(dims) if count > 1] or [0]
    rows = [
        ("topology", ["Switch"] * len(used), "; ".join(words[n] for n in used)),
        ("npus_count", [str(dims[n][0]) for n in used], f"{nics} NPUs, one for each NIC"),
        ("bandwidth", [f"{dims[n][1] / 8 / 2**30:.9g}" for n in used], "2^30 bytes/s"),
        ("latency", [f"{dims[n][2]:.1f}" for n in used], "ns"),
    ]
    text = [f"{key}: [ {', '.join(values)} ]  # {note}" for key, values, note in rows]
    return "network.yml", "\n".join([own_line(loaded), _LIMITS, *text, ""])
