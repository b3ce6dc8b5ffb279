"""What must make a check fail: the file with the changes of its `broken_by`.

In:  the document of an experiment; a check with `broken_by`, and the runs that it uses.
Out: a document with these runs and this check alone. Keys keep their lines, so errors name those of `broken_by`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from heddle.spec.yamlfile import Document, Trail


def perturbed(document: Document, check: str, used: Sequence[str]) -> Document:
    """The changes of `set` and `runs` are laid over the keys of the file, group by group."""
    by = document.data["checks"][check]["broken_by"]
    marks, runs = dict(document.marks), {}

    def moved(below: Trail, new: Trail) -> None:
        old = ("checks", check, "broken_by", *below)
        marks.update({(*new, *key[len(old) :]): mark for key, mark in document.marks.items() if key[: len(old)] == old})

    for run in used:
        runs[run] = deepcopy(document.data["runs"][run])  # one by one: anchors of YAML share groups
        moved(("set",), ("runs", run, "set"))
        moved(("runs", run), ("runs", run))
        _merge(runs[run], {"set": by["set"]} if by.get("set") else {})
        _merge(runs[run], (by.get("runs") or {}).get(run, {}))
    alone = {key: value for key, value in document.data["checks"][check].items() if key != "broken_by"}
    return Document({**document.data, "runs": runs, "checks": {check: alone}}, document.source, marks)


def _merge(data: dict[str, Any], change: Mapping[str, Any]) -> None:
    for key, value in change.items():
        if isinstance(value, dict) and isinstance(data.get(key), dict):
            _merge(data[key], value)
        else:
            data[key] = deepcopy(value)
