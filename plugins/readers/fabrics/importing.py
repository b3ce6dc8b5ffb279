"""A fabric file from a topology of another tool.

In:  the file, its format, a fabric whose other keys are kept, and `--set` overrides. Out: ImportedFabric. InputError.
Rates are those of hardware: k, the scale, is a number by which all of them can be divided, so that a host's link has
about 50 Mbit/s.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import gcd
from pathlib import Path
from typing import Any, Final

from heddle.base.problems import InputError, Problem, Problems
from heddle.base.units import format_rate, scale_of
from heddle.fabric.fabricfile import load_document
from heddle.fabric.model import Fabric
from heddle.spec.load import override, put, read_fabric
from heddle.spec.yamlfile import Document
from heddle_plugins.readers.fabrics import hpcc, htsim, infragraph
from heddle_plugins.readers.fabrics.graph import OtherGraph, OtherShape, shape_of

READERS: Final[Mapping[str, Callable[[str, int | None], OtherGraph | OtherShape]]] = {
    "hpcc": hpcc.read, "simai": hpcc.read, "htsim": htsim.read, "infragraph": infragraph.read,
}  # fmt: skip
_KEPT: Final = ("name", "family", "routing", "queues", "roce", "addressing")  # of the fabric file that gets the keys
_GOAL_BPS: Final = 50 * 10**6  # of a host's link: presets have it, since it leaves two processors most of their time
_MOST_BPS: Final = 10**14
_TOGETHER: Final = "nics_per_host"


@dataclass(frozen=True, slots=True)
class ImportedFabric:
    """data: the new fabric file. notes: what was left out or changed. fabric: the built one. k: its scale."""

    data: Mapping[str, Any]
    notes: tuple[str, ...]
    fabric: Fabric
    k: int


def import_fabric(kind: str, file: str, onto: str | None, overrides: Sequence[str] = ()) -> ImportedFabric:
    """Read a topology. kind: of READERS. onto: a preset or fabric file with the other keys; None: their defaults."""
    problems = Problems()
    given = {each.partition("=")[0].strip(): each.partition("=")[2].strip() for each in overrides}
    together = _together(given.pop(_TOGETHER)) if _TOGETHER in given else None
    found = READERS[kind](file, together)
    shape = shape_of(found, given) if isinstance(found, OtherGraph) else found
    document = Document({}, file)
    if onto is not None:
        base = read_fabric(onto, name=None, overrides=(), problems=problems)
        document.data |= {key: deepcopy(base.data[key]) for key in _KEPT if key in base.data}
        document.marks |= {trail: mark for trail, mark in base.marks.items() if trail and trail[0] in _KEPT}
    if "name" not in document.data or "name" in shape.own:
        document.data = {"name": shape.own.get("name") or _name(file), **document.data}
    keys, k = _keys(file, shape, int(shape.own.get("k", "0")))
    for path, value in keys.items():
        put(document, tuple(path.split(".")), value, file)
    if shape.exceptions:
        put(
            document,
            ("link", "exceptions"),
            {port: format_rate(bps // k) for port, bps in shape.exceptions.items()},
            file,
        )
    for each in overrides:
        if each.partition("=")[0].strip() != _TOGETHER:
            override(document, each, problems)
    loaded = load_document(document, problems)
    return ImportedFabric(document.data, tuple(shape.notes), loaded.fabric, loaded.spec.k)


def _together(text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,3}", text):
        raise InputError(Problem("--set", f"{_TOGETHER}={text[:40]}", "is not a number of NICs", f"try {_TOGETHER}=8"))
    return int(text)


def _name(file: str) -> str:
    """A lab's name from the file's."""
    return re.sub(r"[^a-z0-9]", "", Path(file).stem.lower()).lstrip("0123456789")[:12] or "imported"


def _keys(file: str, shape: OtherShape, k: int) -> tuple[dict[str, Any], int]:
    """All keys of the fabric file, and k."""
    host, fabric, top = (*shape.rates, 0, 0)[:3]
    rates = [host, fabric or host, *([top] if top else []), *shape.exceptions.values()]
    if max(rates) > _MOST_BPS:
        raise InputError(Problem(file, f"a link of {format_rate(max(rates))}", f"is above {format_rate(_MOST_BPS)}"))
    every = gcd(*rates)
    if not k or every % k:
        k = next(each for each in range(max(1, host // _GOAL_BPS), 0, -1) if every % each == 0)
    keys = dict(shape.keys)
    keys |= {"link.host": format_rate(host // k), "link.fabric": format_rate(rates[1] // k)}
    if top and top != fabric:
        if "radix" in keys:
            what = f"tier 3, with {format_rate(top)}"
            raise InputError(
                Problem(file, what, f"has another rate than tier 2, {format_rate(fabric)}: fat-tree has one")
            )
        keys["oversubscription"] = _ratio(file, keys["racks"] * fabric, keys["atsw"] * top, fabric // k, top // k)
    if scale_of(host // k) != k:
        keys["scale"] = k
    return keys, k


def _ratio(file: str, below: int, above: int, fabric_bps: int, top_bps: int) -> float:
    """`oversubscription`: a zone's rate from below / its rate upwards, for each CTSW."""
    found = below / above
    if not 0 < found <= 1000:
        what = f"tier 3, with {format_rate(top_bps)} for {format_rate(fabric_bps)} below"
        raise InputError(Problem(file, what, f"has the ratio {found:g}, and Heddle 1000 at most"))
    return int(found) if found == int(found) else found
