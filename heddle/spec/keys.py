"""Building blocks for the groups of a fabric file: strict models, values with units, errors that name another key.

In:  plain values of a YAML file. Out: bytes, bit/s and nanoseconds.
Checks that need more than one key raise ValueError through `at(path, ...)`, so that the loader can name the key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer
from pydantic_core import PydanticCustomError

from heddle.base.families import Family, Network
from heddle.base.units import format_duration, format_rate, parse_duration, parse_rate, parse_size


def at(path: str, why: str, hint: str = "", *, given: Sequence[str] = ()) -> PydanticCustomError:
    """An error at the key `path` (`link.mtu`) that depends on other keys, the `given` ones.

    It is not reported when one of these is wrong itself. A path that begins with a dot is below the group that is
    checked, for groups that the user names, and below `path` in `given`.
    """

    return PydanticCustomError("heddle_at", "{why}", {"path": path, "why": why, "hint": hint, "given": list(given)})


def pool_of(text: str, family: Family, path: str, example: str) -> Network:
    """The pool of addresses of a network, at a key; ValueError by `at` if it is not a private one of the family."""
    try:
        pool = ip_network(text)
    except ValueError as error:
        why = f"is not an {family.name} network: {error}"
        raise at(path, why, f"try {example}", given=["family"]) from None
    if pool.version != family.version:
        why, other = f"is not an {family.name} network", "ipv6" if pool.version == 6 else "ipv4"
        raise at(path, why, f"try {example}, or family: {other}", given=["family"])
    inside = (pool.network_address in each and pool.prefixlen >= each.prefixlen for each in family.allowed)
    if pool.prefixlen > family.pool_most or not any(inside):
        raise at(path, family.pool_why, family.pool_hint, given=["family"])
    return pool


def wrong(why: str, hint: str = "") -> PydanticCustomError:
    """An error of the value that is being checked."""
    return PydanticCustomError("heddle_unit", "{why}", {"why": why, "hint": hint})


@contextmanager
def reading(hint: str = "", also: str = "") -> Iterator[None]:
    """Turn a parser's ValueError, `reason; hint`, into an error of the value. hint: another hint; also: added to it."""
    try:
        yield
    except ValueError as error:
        why, _, usual = str(error).partition("; ")
        raise wrong(why, (hint or usual) + also) from None


@dataclass(frozen=True, slots=True)
class Takes:
    """What a key with a reader of its own accepts, in words: metadata of its type, for the reference of keys."""

    words: str


def parsed(parser: Any) -> BeforeValidator:
    """A validator that reads a value with a unit; the error is the ValueError of `parser`."""

    def parse(value: Any) -> int:
        with reading():
            return int(parser(value))

    return BeforeValidator(parse)


Size = Annotated[int, parsed(parse_size)]
# A fabric file requires a unit for rates and durations, so plain data has it too.
Rate = Annotated[int, parsed(parse_rate), PlainSerializer(format_rate, when_used="json")]
# Nanoseconds.
Duration = Annotated[int, parsed(parse_duration), PlainSerializer(format_duration, when_used="json")]


class Strict(BaseModel):
    """A group of keys: no other keys, no conversions, frozen. synonyms: words of other tools -> our path.

    example: of a group in a list; it replaces a wrong one, so that the others are checked.
    """

    synonyms: ClassVar[Mapping[str, str]] = {}
    example: ClassVar[Mapping[str, Any]] = {}
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)
