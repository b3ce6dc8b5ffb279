"""A policy as plain data and back, for records of labs; and with the keys of a fabric file, for live changes.

In:  Policy, QueuePolicy, RoutingPolicy; or their plain data.
Out: data that JSON can hold, with sizes in bytes and durations in nanoseconds; or, `as_file`, keys as a file has them.
Reading raises ValueError, KeyError or TypeError for data of another version of Heddle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from ipaddress import ip_network
from typing import Any

from heddle.base.families import FAMILIES
from heddle.base.units import format_duration
from heddle.fabric.linkfault import LinkFault
from heddle.fabric.policy import (
    FIELDS,
    BufferPolicy,
    ClassCurve,
    EcnPolicy,
    HashOptions,
    PfcPolicy,
    Policy,
    QueuePolicy,
    RoutingPolicy,
    WatchdogPolicy,
)


def dump_policy(policy: Policy) -> dict[str, Any]:
    """Plain data."""
    numbers = {"k": policy.k, "mtu": policy.mtu, "ib_mtu": policy.ib_mtu, "delays": list(policy.delays)}
    routing, queues = asdict(policy.routing), dump_queues(policy.queues)
    data = {"ip": policy.ip.word, "pool": str(policy.pool), **numbers, "routing": routing, "queues": queues}
    faults = [fault.to_json() for fault in policy.link_faults]
    return data | ({"link_faults": faults} if any(faults) else {})


def load_policy(data: Mapping[str, Any]) -> Policy:
    """What `dump_policy` wrote."""
    routing = {**data["routing"], "hash": HashOptions.from_json(data["routing"]["hash"])}
    return Policy(
        k=int(data["k"]),
        mtu=int(data["mtu"]),
        ib_mtu=int(data["ib_mtu"]),
        ip=FAMILIES[data["ip"]],
        pool=ip_network(data["pool"]),
        routing=RoutingPolicy(**routing),
        queues=load_queues(data["queues"]),
        delays=tuple(data.get("delays", ())),
        link_faults=tuple(LinkFault.from_json(each) for each in data.get("link_faults", ())),
    )


def dump_queues(queues: QueuePolicy) -> dict[str, Any]:
    """Plain data."""
    return asdict(queues)


def load_queues(data: Mapping[str, Any]) -> QueuePolicy:
    """What `dump_queues` wrote."""
    ecn, pfc, buffer = data["ecn"], data["pfc"], data["buffer"]
    curves = {int(number): ClassCurve(**curve) for number, curve in ecn["classes"].items()}
    parts = {
        "lossless": tuple(data["lossless"]),
        "weights": _by_number(data["weights"]),
        "dscp": _by_number(data["dscp"]),
        "ecn": EcnPolicy(**{**ecn, "classes": curves}),
        "pfc": PfcPolicy(**{**pfc, "watchdog": WatchdogPolicy(**pfc["watchdog"])}),
        "buffer": BufferPolicy(buffer["host"], tuple(buffer["switches"])),
    }
    return QueuePolicy(**{**data, **parts})


def _by_number(words: Mapping[str, int]) -> dict[int, int]:
    return {int(word): int(value) for word, value in words.items()}


def queues_as_file(queues: QueuePolicy, words: Sequence[str]) -> dict[str, Any]:
    """`queues` of a fabric file. words: of the levels of switches, from the leaves up."""
    data = dump_queues(queues)
    pfc, watchdog = data["pfc"], data["pfc"]["watchdog"]
    durations = {key: format_duration(watchdog[key]) for key in ("detect", "restore")}
    curves = {
        str(number): {key: value for key, value in curve.items() if value is not None}
        for number, curve in data["ecn"]["classes"].items()
    }
    buffer = {word: queues.buffer.at_level(level) for level, word in enumerate(words, 1)}
    return {
        **data,
        "lossless": list(queues.lossless),
        **{key: {str(word): value for word, value in data[key].items()} for key in ("weights", "dscp")},
        "ecn": {**data["ecn"], "classes": curves},
        "pfc": {**pfc, "reaction": format_duration(pfc["reaction"]), "watchdog": {**watchdog, **durations}},
        "buffer": {**buffer, "host": queues.buffer.host},
    }


def routing_as_file(routing: RoutingPolicy) -> dict[str, Any]:
    """`routing` of a fabric file."""
    options = asdict(routing.hash)
    fields, gap, resilient = (options.pop(key) for key in ("fields", "gap_ns", "resilient"))
    words = [word for word, bit in FIELDS.items() if fields & bit]
    keys = {"ecmp": routing.ecmp, "seed": routing.seed, "resilient": resilient, "ucmp": routing.ucmp}
    return {**keys, "hash": {**options, "fields": words, "gap": format_duration(gap)}}
