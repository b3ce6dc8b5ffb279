"""The key `attach` of a fabric file: ports that `up` gives to devices of users.

In:  host or port -> `tap`, `tap NAME`, `netns NAME`, `netdev NAME`, `container NAME`.
Out: InputError for what is wrong, before a lab is created; the ports attached, when its routes are there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from heddle.base.events import Observer
from heddle.base.problems import HeddleError, Problem, Problems, did_you_mean
from heddle.lab.attached import Attachment
from heddle.lab.lab import Lab
from heddle_plugins.attach.attaching import ELSEWHERE, attach_locked, port_of
from heddle_plugins.attach.targets import KINDS


def check(lab: Lab, wanted: Mapping[str, str]) -> None:
    """InputError with all that is wrong in the key; namespaces and devices are looked for when they are needed."""
    lab.require_here(*ELSEWHERE)
    problems = Problems()
    for ref, text in wanted.items():
        kind, name = _parts(text)
        what = f"attach.{ref}: {text}"
        if kind not in KINDS or not (name or kind == "tap"):
            hint = did_you_mean(kind, KINDS) if kind not in KINDS else f"write it as {kind} NAME"
            problems.add(where="", what=what, why="names no device", hint=hint)
        try:
            port_of(lab.fabric, ref)
        except HeddleError as error:
            problems.found += [Problem("", what, each.why, each.hint) for each in error.problems]
    problems.raise_if_any()


def attach(lab: Lab, wanted: Mapping[str, str], observer: Observer) -> None:
    """Attach them all. The caller holds the lock of the lab. Errors as of `attaching.attach`."""
    for row in _attached(lab, wanted):
        observer.say(row.text)


def _attached(lab: Lab, wanted: Mapping[str, str]) -> Iterator[Attachment]:
    for ref, text in wanted.items():
        kind, name = _parts(text)
        yield from attach_locked(lab, [ref], kind, [name] if name else [])


def _parts(text: str) -> tuple[str, str]:
    kind, _, name = text.strip().partition(" ")
    return kind, name.strip()
