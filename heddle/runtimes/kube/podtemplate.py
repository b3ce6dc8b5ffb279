"""`--pod FILE`: where pods run and how they are kept, in the keys of a Pod. What a pod may do stays as it is.

In:  a YAML file. Out: the same as JSON, for a KubeTarget. InputError with file, line, key and value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from heddle.base.problems import InputError, Problem, did_you_mean
from heddle.spec.yamlfile import ReadOptions, Trail, dotted, parse, read_text

READING: Final = ReadOptions(kind="pod's template", example="docs/kubernetes.md")
_OWN: Final = ("heddle.", "app.kubernetes.io/name")  # labels by which Heddle finds its pods
_QUANTITY: Final = re.compile(r"[0-9]+(\.[0-9]+)?(m|[kMGTPE]|[KMGTPE]i)?")
_TEXTS: Final = {"*": str}  # any key
_SIZES: Final = dict.fromkeys(("cpu", "memory", "ephemeral-storage"), _QUANTITY)
_SPREAD: Final = {
    "maxSkew": int, "topologyKey": str, "whenUnsatisfiable": str, "minDomains": int, "nodeAffinityPolicy": str,
    "nodeTaintsPolicy": str,
}  # fmt: skip
_KEYS: Final = {
    "metadata": {"annotations": _TEXTS, "labels": _TEXTS},
    "spec": {
        "nodeSelector": _TEXTS,
        "tolerations": [{"key": str, "operator": str, "value": str, "effect": str, "tolerationSeconds": int}],
        "topologySpreadConstraints": [_SPREAD],
        **dict.fromkeys(("priorityClassName", "runtimeClassName", "schedulerName"), str),
        "imagePullSecrets": [{"name": str}],
        "containers": [{"resources": {"requests": _SIZES, "limits": _SIZES}}],
    },
}
_WORDS: Final = {
    str: "a text: write it in quotes", int: "a whole number", dict: "keys and values", list: "a list",
    re.Pattern: "a quantity of Kubernetes, as 500m, 2 or 4Gi",
}  # fmt: skip


def read_pod(file: Path, name: str) -> str:
    """The checked content of a file. name: as the user wrote it."""
    document = parse(read_text(file, name, READING), name, READING)
    problems = []
    for trail, why, hint in _wrong(document.data, _KEYS, ()):
        text, what = document.text(trail), dotted(trail)
        problems.append(Problem(document.where(trail), f"{what}: {text}" if text else what, why, hint))
    if problems:
        raise InputError(*problems)
    return json.dumps(document.data, sort_keys=True)


def _wrong(value: Any, kind: Any, trail: Trail) -> Iterator[tuple[Trail, str, str]]:
    """Each value that is not of its kind, as _KEYS has them: its path, why, and a hint."""
    if isinstance(kind, dict) and isinstance(value, dict):
        for key, each in value.items():
            below = (*trail, key)
            if trail[-1:] == ("labels",) and key.startswith(_OWN):
                yield below, "is a label of Heddle", "choose another name"
            elif known := kind.get(key) or kind.get("*"):
                yield from _wrong(each, known, below)
            else:
                yield below, "is not a key of a pod's template: Heddle sets all else", did_you_mean(key, kind)
    elif isinstance(kind, list) and isinstance(value, list):
        for number, each in enumerate(value):
            yield from _wrong(each, kind[0], (*trail, number))
        if trail == ("spec", "containers") and len(value) != 1:
            yield trail, "is not one container: a pod of Heddle has one", "write one item with resources"
    elif kind is _QUANTITY and type(value) in (str, int, float) and _QUANTITY.fullmatch(str(value)):
        return
    elif type(value) is not kind:
        yield trail, f"is not {_WORDS[kind if isinstance(kind, type) else type(kind)]}", ""
