"""Rules that read the JSON of Open Traffic Generator: all errors are collected, and no field is ignored.

In:  a value, and its place in the document. Out: plain data with defaults, as a rule says.
A field that no rule has is an error, whether OTG has it or not. A field that has no effect in a lab is a warning.
64-bit numbers may be text, as protobuf's JSON has them.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from heddle.base.problems import Problem, did_you_mean, printable

U32: Final = (1 << 32) - 1
U64: Final = (1 << 64) - 1
MOST_ERRORS: Final = 100  # that an answer names
_SHOWN: Final = 60  # characters of a wrong value
_MAC: Final = re.compile(r"(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}")
_NOTED: Final = 1 << 16  # characters of a value without effect


@dataclass(slots=True)
class Remarks:
    """What is wrong with a document, and what of it has no effect."""

    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class At:
    """A place in a document: `flows[0].rate`."""

    path: str
    notes: Remarks

    def inside(self, key: str | int) -> At:
        """The place of a field, or of an item of a list."""
        text = f"[{key}]" if isinstance(key, int) else f".{printable(key, _SHOWN)}" if self.path else printable(key)
        return At(f"{self.path}{text}", self.notes)

    def wrong(self, why: str, hint: str = "") -> None:
        """Note an error; what reads the document goes on."""
        if len(self.notes.problems) < MOST_ERRORS:
            self.notes.problems.append(Problem("", self.path or "the document", why, hint))

    def note(self, text: str) -> None:
        """Note a warning."""
        self.notes.warnings.append(f"{self.path}: {text}")


Read = Callable[[Any, At], Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """How a value is read. default: of a field that is absent; `needed`: there is none."""

    read: Read
    default: Any = None
    needed: bool = False


def _shown(value: Any) -> str:
    return printable(str(value), _SHOWN)


def required(rule: Rule) -> Rule:
    """The same rule for a field that must be there."""
    return Rule(rule.read, needed=True)


def number(default: float | None, least: float = 0, most: float = U32, *, whole: bool = True) -> Rule:
    """A number of a range. whole: an integer."""

    def read(value: Any, at: At) -> Any:
        found = value
        if isinstance(found, str) and re.fullmatch(r"[0-9]{1,20}", found):
            found = int(found)
        if isinstance(found, bool) or not isinstance(found, int if whole else int | float) or not _finite(found):
            at.wrong(f"is {_shown(value)}, which is not a{' whole' if whole else ''} number")
        elif not least <= found <= most:
            at.wrong(f"is {_shown(value)}", f"use {least:g} to {most:g}")
        else:
            return found
        return default

    return Rule(read, default)


def _finite(value: float) -> bool:
    return isinstance(value, int) or math.isfinite(value)


def text(most: int = 256) -> Rule:
    """Text that can be printed, with at least one character."""

    def read(value: Any, at: At) -> Any:
        if not isinstance(value, str) or not 0 < len(value) <= most or not value.isprintable():
            at.wrong(f"is {_shown(value)}, which is not a text of 1 to {most} characters")
            return None
        return value

    return Rule(read)


def word(default: str | None, *words: str) -> Rule:
    """One of some words."""

    def read(value: Any, at: At) -> Any:
        if not isinstance(value, str) or value not in words:
            at.wrong(f"is {_shown(value)}, which is not supported", did_you_mean(_shown(value), words))
            return default
        return value

    return Rule(read, default)


def flag(default: bool) -> Rule:
    """true or false."""

    def read(value: Any, at: At) -> Any:
        if not isinstance(value, bool):
            at.wrong(f"is {_shown(value)}, which is neither true nor false")
            return default
        return value

    return Rule(read, default)


def hexadecimal(digits: int) -> Rule:
    """A number in hexadecimal."""

    def read(value: Any, at: At) -> Any:
        if not isinstance(value, str) or not re.fullmatch(rf"(?:0[xX])?[0-9a-fA-F]{{1,{digits}}}", value):
            at.wrong(f"is {_shown(value)}, which is not {digits} hexadecimal digits or fewer")
            return 0
        return int(value, 16)

    return Rule(read, 0)


def octets(most: int) -> Rule:
    """Bytes in hexadecimal; spaces and colons between them do not count."""

    def read(value: Any, at: At) -> Any:
        try:
            found = bytes.fromhex(re.sub(r"^0[xX]|[: ]", "", value))
        except (TypeError, ValueError):
            at.wrong(f"is {_shown(value)}, which is not bytes in hexadecimal")
            return b""
        if not 0 < len(found) <= most:
            at.wrong(f"has {len(found)} bytes", f"use 1 to {most} bytes")
        return found

    return Rule(read, b"")


def mac() -> Rule:
    """A MAC address, as an integer."""

    def read(value: Any, at: At) -> Any:
        if not isinstance(value, str) or not _MAC.fullmatch(value):
            at.wrong(f"is {_shown(value)}, which is not a MAC address", "write 02:00:00:00:00:01")
            return 0
        return int(value.replace(":", ""), 16)

    return Rule(read)


def address(version: int) -> Rule:
    """An IP address, as an integer."""

    def read(value: Any, at: At) -> Any:
        try:
            found = ipaddress.ip_address(value) if isinstance(value, str) else None
        except ValueError:
            found = None
        if found is None or found.version != version or getattr(found, "scope_id", None):
            at.wrong(f"is {_shown(value)}, which is not an IPv{version} address")
            return 0
        return int(found)

    return Rule(read)


def listed(rule: Rule, most: int, least: int = 0) -> Rule:
    """A list of up to `most` values."""

    def read(value: Any, at: At) -> Any:
        if not isinstance(value, list):
            at.wrong(f"is {_shown(value)}, which is not a list")
            return []
        if not least <= len(value) <= most:
            at.wrong(f"has {len(value)} items", f"use {least} to {most}")
            return []
        return [rule.read(each, at.inside(index)) for index, each in enumerate(value)]

    return Rule(read, [])


def fields(rules: Mapping[str, Rule], *, always: bool = False) -> Rule:
    """An object with these fields. always: an absent one is as an empty one."""

    def read(value: Any, at: At) -> Any:
        if not isinstance(value, dict):
            at.wrong(f"is {_shown(value)}, which is not an object")
            value = {}
        return _members(value, at, rules)

    return Rule(read, _defaults(rules) if always else None)


def _defaults(rules: Mapping[str, Rule]) -> dict[str, Any]:
    return {key: rule.default for key, rule in rules.items()}


def _members(value: Mapping[str, Any], at: At, rules: Mapping[str, Rule]) -> dict[str, Any]:
    for key in value.keys() - rules.keys():
        at.inside(key).wrong("is not a field that this server supports", did_you_mean(_shown(key), rules))
    found = {}
    for key, rule in rules.items():
        if value.get(key) is not None:
            found[key] = rule.read(value[key], at.inside(key))
        else:
            if rule.needed:
                at.inside(key).wrong("is missing")
            found[key] = rule.default
    return found


def choice(default: str | None, options: Mapping[str, Rule], *, always: bool = False) -> Rule:
    """An object with the field `choice` and the one that it names: (name, value). Without it, the field that is there.

    always: an absent object is the default choice.
    """

    def read(value: Any, at: At) -> Any:
        if not isinstance(value, dict):
            at.wrong(f"is {_shown(value)}, which is not an object")
            value = {}
        present = [key for key in value if key != "choice" and value[key] is not None]
        chosen = value.get("choice", present[0] if len(present) == 1 else default)
        if chosen not in options if isinstance(chosen, str) else True:
            hint = did_you_mean(_shown(chosen), options)
            at.inside("choice").wrong(f"is {_shown(chosen)}, which is not supported", hint)
            return default, options[default].default if default is not None else None
        for key in present:
            if key != chosen:
                at.inside(key).wrong(f"does not apply: the choice is {chosen}")
        rule = options[chosen]
        if value.get(chosen) is None:
            if rule.needed:
                at.inside(chosen).wrong("is missing")
            return chosen, rule.default
        return chosen, rule.read(value[chosen], at.inside(chosen))

    return Rule(read, (default, options[default].default) if always and default is not None else None)


def nothing() -> Rule:
    """A choice without data: an empty object at most."""

    def read(value: Any, at: At) -> Any:
        if value != {}:
            at.wrong(f"is {_shown(value)}, and this choice has no data")

    return Rule(read)


def only(value: Any, why: str) -> Rule:
    """A field that can have one value. why: what is missing for others."""

    def read(found: Any, at: At) -> Any:
        if found != value:
            at.wrong(f"is {_shown(found)}: {why}", f"use {value}")
        return value

    return Rule(read, value)


def without_effect(why: str) -> Rule:
    """A field whose value has no effect in a lab: a warning says why."""

    def read(value: Any, at: At) -> Any:
        if len(str(value)) > _NOTED:
            at.wrong("is too long")
        at.note(f"has no effect: {why}")
        return value

    return Rule(read)
