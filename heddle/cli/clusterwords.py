"""The options of a verb that say which cluster runs pods, and how, as a record keeps them (runtimes/kube/target.py)."""

from __future__ import annotations

from collections.abc import Mapping


def target_of(given: Mapping[str, object]) -> dict[str, str]:
    """Those that were given; a file of --pod is read. InputError for what is wrong in it."""
    found = {key: str(value) for key, value in given.items() if value is not None}
    if "pod" in found:
        from heddle.base.files import real
        from heddle.runtimes.kube.podtemplate import read_pod

        found["pod"] = read_pod(real(found["pod"]), found["pod"])
    return found
