"""Parameters of a collective: a field of its class that states its type, range and purpose.

In:  the values that a user gave. Out: checked values; InputError with every wrong one.
Flags, completion and keys of files can be derived from `parameters_of`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from heddle.base.problems import Problems, did_you_mean

Value = str | int


@dataclass(frozen=True, slots=True)
class ParameterRange:
    """What a field may have: a whole number from `low` to `high`, one of the words of its Literal, or any text."""

    help: str
    low: int = 0
    high: int = 0


@dataclass(frozen=True, slots=True)
class CollectiveParameter:
    """A parameter of a pattern. choices: the words that it may have; empty for a number or a text."""

    name: str
    default: Value
    choices: tuple[str, ...]
    parameter: ParameterRange


def parameters_of(kind: type) -> tuple[CollectiveParameter, ...]:
    """All parameters of a pattern's class, in the order of its fields."""
    hints = get_type_hints(kind, include_extras=True)
    found = []
    for each in fields(kind):
        if get_origin(hints[each.name]) is Annotated:
            words, parameter = get_args(hints[each.name])
            default: Any = each.default
            found.append(CollectiveParameter(each.name, default, get_args(words), parameter))
    return tuple(found)


def checked(kind: type, what: str, given: Mapping[str, Value]) -> dict[str, Value]:
    """The values, numbers as int; InputError for unknown names and values out of range. what: the pattern's name."""
    known, problems, found = {each.name: each for each in parameters_of(kind)}, Problems(), dict[str, Value]()
    for name, value in given.items():
        each = known.get(name)
        flag = f"--{name} {value}"
        if each is None:
            hint = did_you_mean(name, list(known))
            problems.add(where="", what=flag, why=f"is not a parameter of {what}", hint=hint)
        elif each.choices and value not in each.choices:
            hint = did_you_mean(str(value), list(each.choices))
            problems.add(where="", what=flag, why=f"is not one of {', '.join(each.choices)}", hint=hint)
        elif isinstance(each.default, int) and not _in_range(each.parameter, value):
            why = f"is not a whole number from {each.parameter.low} to {each.parameter.high}"
            problems.add(where="", what=flag, why=why, hint=f"the default is {each.default}")
        else:
            found[name] = int(value) if isinstance(each.default, int) else value
    problems.raise_if_any()
    return found


def _in_range(each: ParameterRange, value: Value) -> bool:
    try:
        return each.low <= int(value) <= each.high
    except ValueError:
        return False
