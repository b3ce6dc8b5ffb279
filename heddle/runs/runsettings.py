"""The settings of a run in words, and those in which two runs differ.

In:  StoredRun. Out: name -> value: its options, the fabric's policy, versions and machine, and what was set live.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from heddle.base.tables import flat, value_text
from heddle.fabric.policydata import dump_policy

if TYPE_CHECKING:
    from heddle.runs.stored import StoredRun
    from heddle.runs.surroundings import Surroundings

_SHOWN: Final = 4  # nodes that a setting names


@dataclass(frozen=True, slots=True)
class SettingDifference:
    """A setting that differs, in words."""

    name: str
    a: str
    b: str


def differing_settings(a: StoredRun, b: StoredRun) -> tuple[SettingDifference, ...]:
    """Options, policy of the fabric, versions and machine, if they differ. A part that one run misses gives no row."""
    fabrics = a.fabric.value is not None and b.fabric.value is not None
    around = a.surroundings.value is not None and b.surroundings.value is not None
    told = [settings_of(run, fabrics, around) for run in (a, b)]
    names = dict.fromkeys((*told[0], *told[1]))
    pairs = ((name, told[0].get(name, "-"), told[1].get(name, "-")) for name in names)
    return tuple(SettingDifference(name, one, other) for name, one, other in pairs if one != other)


def settings_of(run: StoredRun, with_fabric: bool, with_around: bool) -> dict[str, str]:
    """Every setting of a run in words."""
    header, built, around = run.record.header, run.fabric.value, run.surroundings.value
    told = {f"run.{name}": value_text(each) for name, each in flat(asdict(header.options)).items() if name != "sizes"}
    told |= {"lab made from": header.fabric, "hashing": header.ecmp, "ranks": str(len(header.ranks))}
    told["hosts of the ranks"] = " ".join(f"{rank.host}:{rank.port}" for rank in header.ranks)
    told["Heddle"] = run.record.heddle
    if built is not None and with_fabric:
        told |= {f"fabric.{name}": value_text(each) for name, each in flat(dump_policy(built.policy)).items()}
        sizes = (built.switches, built.hosts, built.links)
        told["switches, hosts, links"] = ", ".join(str(len(each)) for each in sizes)
        told["rates of links (bit/s)"] = ", ".join(
            f"{rate:,}" for rate in sorted({link.rate_bps for link in built.links})
        )
    if around is not None and with_around:
        told |= {f"version of {name}": version for name, version in around.versions.items() if name != "Heddle"}
        told |= {"runtime": around.runtime, "processors": f"{around.processors} x {around.processor}"}
        told |= _live(around)
    return told


def _live(around: Surroundings) -> dict[str, str]:
    """What was set while the lab ran."""
    found: dict[str, dict[str, list[str]]] = {}
    for node, settings in around.queues.items():
        for path, value in settings.items():
            found.setdefault(f"live queues.{path}", {}).setdefault(value_text(value), []).append(node)
    usual = flat({"options": around.fabric.policy.routing.hash.to_json(), "exact": []})
    for switch, rule in around.hashing.items():
        for path, value in flat(rule).items():
            # The mode is in `hashing`; seeds differ from switch to switch.
            if path not in ("mode", "seed") and usual.get(path) != value:
                found.setdefault(f"live hashing.{path}", {}).setdefault(value_text(value), []).append(switch)
    return {name: "; ".join(f"{value} on {_some(at)}" for value, at in each.items()) for name, each in found.items()}


def _some(nodes: Sequence[str]) -> str:
    return ", ".join(nodes) if len(nodes) <= _SHOWN else f"{len(nodes)} nodes"
