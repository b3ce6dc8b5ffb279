"""`--pod FILE`: where pods run and how they are kept, in the keys of a Pod. What a pod may do stays as it is.

In:  a YAML file with `metadata` and `spec` of a Pod; a container has only `resources`.
Out: the same as JSON, for a KubeTarget. InputError with file, line, key and value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from heddle.base.problems import InputError, Problem, Problems, did_you_mean
from heddle.spec.yamlfile import Document, ReadOptions, Trail, dotted, parse, read_text

READING: Final = ReadOptions(kind="pod's template", example="docs/kubernetes.md")
_NAME: Final = "a name"
_TEXTS: Final = "keys with texts"
_NUMBER: Final = "a number"
_QUANTITY: Final = re.compile(r"[0-9]+(\.[0-9]+)?(m|[kMGTPE]|[KMGTPE]i)?")
_OWN: Final = ("heddle.", "app.kubernetes.io/name")  # labels by which Heddle finds its pods
_SIZES: Final = dict.fromkeys(("cpu", "memory", "ephemeral-storage"), _QUANTITY)
# A mapping: its keys. A list: the kind of its items.
_KEYS: Final[Mapping[str, Any]] = {
    "metadata": {"annotations": _TEXTS, "labels": _TEXTS},
    "spec": {
        "nodeSelector": _TEXTS,
        "tolerations": [
            {"key": _NAME, "operator": _NAME, "value": _NAME, "effect": _NAME, "tolerationSeconds": _NUMBER}
        ],
        "topologySpreadConstraints": [
            {
                "maxSkew": _NUMBER, "topologyKey": _NAME, "whenUnsatisfiable": _NAME, "minDomains": _NUMBER,
                "nodeAffinityPolicy": _NAME, "nodeTaintsPolicy": _NAME,
            }
        ],
        "priorityClassName": _NAME,
        "runtimeClassName": _NAME,
        "schedulerName": _NAME,
        "imagePullSecrets": [{"name": _NAME}],
        "containers": [{"resources": {"requests": _SIZES, "limits": _SIZES}}],
    },
}  # fmt: skip


def read_pod(file: Path, name: str) -> str:
    """The checked content of a file. name: as the user wrote it."""
    document = parse(read_text(file, name, READING), name, READING)
    reader = _PodReader(document)
    reader.check(document.data, _KEYS, ())
    reader.problems.raise_if_any(InputError)
    containers = (document.data.get("spec") or {}).get("containers")
    if containers is not None and len(containers) != 1:
        where, why = document.where(("spec", "containers")), "is not one container: a pod of Heddle has one"
        raise InputError(Problem(where, "spec.containers", why, "write one item with resources"))
    return json.dumps(document.data, sort_keys=True)


class _PodReader:
    """Notes what is not of its kind, as _KEYS has them."""

    def __init__(self, document: Document) -> None:
        self._document, self.problems = document, Problems()

    def check(self, value: Any, kind: Any, trail: Trail) -> None:
        """One value, with all that is in it."""
        if isinstance(kind, Mapping):
            self._keys(value, kind, trail)
        elif isinstance(kind, list):
            if isinstance(value, list):
                for number, each in enumerate(value):
                    self.check(each, kind[0], (*trail, number))
            else:
                self._wrong(trail, "is not a list", "begin each item with a hyphen")
        elif kind == _TEXTS:
            self._texts(value, trail)
        else:
            self._single(value, kind, trail)

    def _keys(self, value: Any, kind: Mapping[str, Any], trail: Trail) -> None:
        if not isinstance(value, dict):
            self._wrong(trail, "is not keys and values", f"keys: {', '.join(kind)}")
            return
        for key, each in value.items():
            if key in kind:
                self.check(each, kind[key], (*trail, key))
            else:
                why = "is not a key of a pod's template: Heddle sets all else"
                self._wrong((*trail, key), why, did_you_mean(key, kind))

    def _texts(self, value: Any, trail: Trail) -> None:
        if not isinstance(value, dict):
            self._wrong(trail, "is not keys and values", "write each as key: value")
            return
        for key, each in value.items():
            if not isinstance(each, str):
                self._wrong((*trail, key), "is not a text", "write it in quotes")
            elif trail[-1] == "labels" and key.startswith(_OWN):
                self._wrong((*trail, key), "is a label of Heddle", "choose another name")

    def _single(self, value: Any, kind: Any, trail: Trail) -> None:
        if kind == _NUMBER:
            if type(value) is not int or value < 0:
                self._wrong(trail, "is not a whole number", "use 0 or more")
        elif kind == _QUANTITY:
            if type(value) not in (str, int, float) or _QUANTITY.fullmatch(str(value)) is None:
                self._wrong(trail, "is not a quantity of Kubernetes", "use for example 500m, 2, 512Mi or 4Gi")
        elif not isinstance(value, str):
            self._wrong(trail, "is not a text", "write it in quotes")

    def _wrong(self, trail: Trail, why: str, hint: str) -> None:
        text, what = self._document.text(trail), dotted(trail)
        where = self._document.where(trail)
        self.problems.add(where=where, what=f"{what}: {text}" if text else what, why=why, hint=hint)
