"""Path prediction: which egress ports a flow takes, computed from each switch's FIB and hashing, with no kernel asked.

In:  Fib and SwitchHashing of every switch (read once), and flows.
Out: for each flow the ordered egress ports, from its source's RTSW to the port that its destination host hangs on.
The hashes are in hashes.py; here is the kernel's way from a hash to a next hop, and the walk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from topologies.fabric import Fabric, Tier
from topologies.problems import CheckError, Problem
from topologies.switch.fib import Fib, NextHop
from topologies.switch.hashing import FIELDS_5_TUPLE, MODES, POLICY_CUSTOM, SwitchHashing
from traffic.paths.hashes import POLICIES, U32, FlowArrays, e_ecmp_hash, kernel_hash
from traffic.plan import Flow

MAX_HOPS: Final = 16  # a packet that meets more switches than this is in a loop

Path = tuple[str, ...]


def predict(
    fabric: Fabric, fibs: Mapping[str, Fib], hashing: Mapping[str, SwitchHashing], flows: Sequence[Flow]
) -> list[Path]:
    """The path of every flow, in their order; all flows at one switch are computed at once.

    A path ends early at a switch that has no route, no live next hop, or is met after MAX_HOPS: compare its last port's
    peer with the destination. KeyError when fibs or hashing lack a switch that is met, CheckError when a switch hashes
    in a way that is not modelled.
    """
    columns = FlowArrays.of(tuple(flows))
    paths: list[list[str]] = [[] for _ in flows]
    peers = {port.ref: port.peer_node for node in fabric.nodes for port in node.ports}
    here: dict[str, list[int]] = {}
    for row, flow in enumerate(flows):
        here.setdefault(flow.first_hop.partition(":")[0], []).append(row)
    for _ in range(MAX_HOPS):
        there: dict[str, list[int]] = {}
        for switch, members in here.items():
            rows = np.array(members, dtype=np.intp)
            for row, port in zip(members, egress(fibs[switch], hashing[switch], columns.take(rows)), strict=True):
                if port is None:
                    continue
                ref = f"{switch}:{port}"
                paths[row].append(ref)
                peer = peers.get(ref)
                if peer is not None and fabric.by_name[peer].tier is not Tier.HOST:
                    there.setdefault(peer, []).append(row)
        here = there
    return [tuple(path) for path in paths]


def egress(fib: Fib, hashing: SwitchHashing, flows: FlowArrays) -> list[str | None]:
    """The egress port at one switch for each flow; None where it forwards nothing."""
    hashes = bucket_input(hashing, flows)
    unique, rows = np.unique(flows.dst, return_inverse=True)
    prefixes = [fib.match(int(address)) for address in unique]
    found: list[str | None] = [None] * len(flows.dst)
    by_prefix: dict[object, list[int]] = {}
    for row, which in enumerate(rows):
        by_prefix.setdefault(prefixes[which], []).append(row)
    for prefix, members in by_prefix.items():
        hops = fib.routes[prefix] if prefix is not None else ()  # type: ignore[index]
        picked = select(hops, hashes[members])
        for row, index in zip(members, picked, strict=True):
            found[row] = hops[index].port if index >= 0 else None
    return found


def bucket_input(hashing: SwitchHashing, flows: FlowArrays) -> U32:
    """The 31-bit number that a switch compares with its upper bounds."""
    if hashing.mode not in MODES or hashing.policy not in POLICIES:
        why = f"hashes by {hashing.mode} under fib_multipath_hash_policy {hashing.policy}, which is not modelled"
        raise CheckError(Problem("", hashing.switch, why, "./inv validate says what was to be expected"))
    if hashing.policy == POLICY_CUSTOM and hashing.fields != FIELDS_5_TUPLE:
        why = f"hashes over fib_multipath_hash_fields {hashing.fields:#x}, and only {FIELDS_5_TUPLE:#x} is modelled"
        raise CheckError(Problem("", hashing.switch, why, _set_hint("fields", FIELDS_5_TUPLE)))
    if not hashing.by_program and hashing.seed == 0:
        why = "hashes with a seed that Linux made up and tells nobody: fib_multipath_hash_seed is 0"
        raise CheckError(Problem("", hashing.switch, why, _set_hint("seed", 1)))
    full = e_ecmp_hash(flows, hashing.seed) if hashing.by_program else kernel_hash(flows, hashing.seed, hashing.policy)
    return full >> np.uint32(1)


def _set_hint(key: str, value: int) -> str:
    """A container's processes may not write sysctls, so it takes the topology."""
    return f"down, then up again with net.ipv4.fib_multipath_hash_{key}: {value} in the topology's sysctls, and a run"


def upper_bounds(weights: Sequence[int]) -> npt.NDArray[np.int64]:
    """fib_rebalance and nh_hthr_group_rebalance: DIV_ROUND_CLOSEST_ULL(running weight << 31, total) - 1."""
    running = np.cumsum(np.array(weights, dtype=np.int64))
    total = int(running[-1])
    bounds: npt.NDArray[np.int64] = ((running << 31) + total // 2) // total - 1
    return bounds


def select(hops: Sequence[NextHop], hashes: U32) -> npt.NDArray[np.intp]:
    """The index of the next hop of each 31-bit hash, -1 where there is none to take.

    Dead next hops have the bound -1 and their weight is not counted (fib_rebalance); the first live one whose bound is
    not below the hash is taken (fib_select_multipath, nexthop_select_path_hthr).
    """
    live = np.array([i for i, hop in enumerate(hops) if not hop.dead], dtype=np.intp)
    if len(live) == 0:
        return np.full(len(hashes), -1, dtype=np.intp)
    bounds = upper_bounds([hops[i].weight for i in live])
    picked: npt.NDArray[np.intp] = live[np.searchsorted(bounds, hashes.astype(np.int64), side="left")]
    return picked
