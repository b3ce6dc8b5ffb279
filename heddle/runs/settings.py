"""The settings of a stored run in words, and the runs of the history that have the same ones.

In:  StoredRun. Out: name -> value, by the part of the run that has it; settings that differ; equal runs.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Final

from heddle.base.tables import flat, value_text
from heddle.fabric.policydata import dump_policy, fabric_to_json
from heddle.runs.runrecord import RunRecord, unfit
from heddle.runs.runtable import RunHead
from heddle.runs.store import History
from heddle.runs.stored import StoredRun

if TYPE_CHECKING:
    from heddle.fabric.model import Fabric
    from heddle.lab.fabricstate import FabricState
    from heddle.runs.surroundings import Surroundings

_LOOKED_AT: Final = 50  # the latest runs: no more are kept by default


@dataclass(frozen=True, slots=True)
class SettingDifference:
    """A setting that differs, in words."""

    name: str
    a: str
    b: str


def differing_settings(a: StoredRun, b: StoredRun) -> tuple[SettingDifference, ...]:
    """Options, fabric, versions, machine, faults and state of the fabric, if they differ. A part that one run misses
    gives no row.
    """
    one, other = settings_of(a), settings_of(b)
    shared = [part for part in one if part in other]
    pairs = (
        (name, one[part].get(name, "-"), other[part].get(name, "-"))
        for part in shared
        for name in dict.fromkeys((*one[part], *other[part]))
    )
    return tuple(SettingDifference(*each) for each in pairs if each[1] != each[2])


def settings_of(run: StoredRun) -> dict[str, dict[str, str]]:
    """Every setting of a run in words, by the part of the run that has it. Parts that it does not carry are absent."""
    from heddle.endpoints.runoptions import plain

    record, built, around = run.record, run.fabric.value, run.surroundings.value
    told = {f"run.{name}": value_text(each) for name, each in flat(plain(record.options)).items() if name != "sizes"}
    told |= {"lab made from": record.fabric, "hashing": record.ecmp, "ranks": str(len(record.ranks))}
    told["hosts of the ranks"] = " ".join(f"{rank.host}:{rank.port}" for rank in record.ranks)
    told["jobs beside it"] = "; ".join(record.beside) or "none"
    told["Heddle"] = record.heddle
    found = {"record": told}
    if built is not None:
        found["fabric"] = _of_fabric(built)
    if around is not None:
        found["around"] = {f"version of {name}": each for name, each in around.versions.items() if name != "Heddle"}
        found["around"] |= {"runtime": around.runtime, "processors": f"{around.processors} x {around.processor}"}
        found["around"] |= _live(around)
    if record.fabric_state is not None:
        found["state"] = _of_state(record.fabric_state)
    return found


def _of_fabric(built: Fabric) -> dict[str, str]:
    told = {f"fabric.{name}": value_text(each) for name, each in flat(dump_policy(built.policy)).items()}
    told["switches, hosts, links"] = ", ".join(str(len(each)) for each in (built.switches, built.hosts, built.links))
    told["rates of links (bit/s)"] = ", ".join(f"{rate:,}" for rate in sorted({link.rate_bps for link in built.links}))
    # All the rest, such as which of the links is the slow one, and addresses, which a hash sees.
    rest = {name: value for name, value in fabric_to_json(built).items() if name not in ("name", "policy")}
    told["wiring and addresses"] = f"checksum {zlib.crc32(json.dumps(rest, sort_keys=True).encode()):08x}"
    return told


def faults_of_links(state: FabricState) -> str:
    """What was set on links, and what after the run if that differs; empty for none."""
    found = _before_after("; ".join(state.before.link_faults), "; ".join(state.after.link_faults))
    return "" if found == "none" else found


def _of_state(state: FabricState) -> dict[str, str]:
    gaps = ("; ".join((*reading.faults, *reading.gaps)) for reading in (state.before, state.after))
    return {
        "faults of links": faults_of_links(state) or "none",
        "faults of the fabric": _before_after(*gaps),
        "changed during the run": ", ".join(state.changed) or "none",
    }


def _before_after(*texts: str) -> str:
    return ", then ".join(dict.fromkeys(text or "none" for text in texts))


def _live(around: Surroundings) -> dict[str, str]:
    found: dict[str, dict[str, list[str]]] = {}
    for node, settings in around.queues.items():
        for path, value in settings.items():
            found.setdefault(f"live queues.{path}", {}).setdefault(value_text(value), []).append(node)
    usual = flat({"options": around.fabric.policy.routing.hash.to_json(), "exact": []})
    seeds = {node.name: node.hash_seed for node in around.fabric.switches}
    for switch, rule in around.hashing.items():
        for path, value in flat(rule).items():
            if path != "mode" and {**usual, "seed": seeds.get(switch)}.get(path) != value:  # the mode is in `hashing`
                found.setdefault(f"live hashing.{path}", {}).setdefault(value_text(value), []).append(switch)
    return {
        name: "; ".join(f"{value} on {', '.join(at)}" for value, at in each.items()) for name, each in found.items()
    }


def equal_runs(run: StoredRun) -> Mapping[Path, RunRecord]:
    """By directory, the run itself and its repetitions; empty for a run without an outcome.

    Equal: all settings and sizes, faults of links and the state of the fabric. Left out: others that are not fit for a
    verdict (runrecord.py).
    """
    if not run.record.done:
        return {}
    found = {run.path: run.record}
    wanted = settings_of(run)
    for other in History(run.lab, run.path.parent).newest(_LOOKED_AT):
        if other.damage or not other.record.done or unfit(other.record) or other.path in found:
            continue
        if _about(other.record) == _about(run.record) and settings_of(other) == wanted:
            found[other.path] = other.record
    return found


def _about(record: RunRecord) -> list[object]:
    return [getattr(record, each.name) for each in fields(RunHead) if each.name != "when"]
