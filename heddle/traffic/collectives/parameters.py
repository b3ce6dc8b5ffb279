"""Parameters of a collective: declared fields of its class (base/declared.py), from which flags and help follow.

In:  values by the names of the fields, as typed. Out: checked values; InputError with every wrong one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from heddle.base.declared import options_of
from heddle.base.problems import Problems, did_you_mean

Value = str | int
GROUP: Final = "What runs"  # the heading of their flags


def checked(kind: type, what: str, given: Mapping[str, Value]) -> dict[str, Value]:
    """The values; InputError for unknown names and values out of range. what: the pattern's name."""
    known, problems, found = {each.name: each for each in options_of(kind)}, Problems(), dict[str, Value]()

    def wrong(flag: str, why: str, hint: str) -> None:
        problems.add(where="", what=flag, why=why, hint=hint)

    for name, value in given.items():
        each = known.get(name)
        if each is None:
            wrong(f"--{name} {value}", f"is not a parameter of {what}", did_you_mean(name, list(known)))
        elif each.kind == "int" and not (isinstance(value, int) or value.isdecimal()):
            wrong(f"{each.flag} {value}", "is not a whole number", each.declared.hint)
        else:
            found[name] = each.read(int(value) if each.kind == "int" else str(value), wrong)
    problems.raise_if_any()
    return found
