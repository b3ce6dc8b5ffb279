"""pydantic's errors as Heddle's problems: file and line, path and value, a reason that ends the sentence, a hint.

In:  a Document, and the model to validate it with.
Out: Examined: the model, or Problems in the order of the file's lines.
One table, `_WORDS`, maps pydantic's error types to reasons.
"""

from __future__ import annotations

import copy
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from heddle.base.problems import Problem, nearest, some_of
from heddle.base.units import format_duration, format_rate
from heddle.spec.groups import group_of, is_group
from heddle.spec.yamlfile import Document, Trail, dotted

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Model = type[BaseModel]
M = TypeVar("M", bound=BaseModel)

_ROUNDS: Final = 16  # more than there are checks between keys
_DURATION: Final = re.compile(r"[0-9.]+ *[num]?s")
_OF_LISTS: Final = ("heddle_at", "list_type", "tuple_type", "too_short")
PATTERNS: Final = {
    "^[a-z][a-z0-9]{0,11}$": "use 1 to 12 lowercase letters and digits, a letter first",
    "^[A-Za-z0-9][A-Za-z0-9_-]{0,23}$": "use up to 24 letters, digits, - and _",
}


@dataclass(frozen=True, slots=True)
class Examined(Generic[M]):
    """The result of checking a document. value: the model without the wrong keys; None when that is not valid either.

    spoilt: dotted paths of wrong keys, which later checks skip.
    """

    value: M | None
    problems: list[Problem]
    spoilt: frozenset[str]


def examined(document: Document, model: type[M]) -> Examined[M]:
    """Every error as a Problem, one per path, in the order of the lines.

    pydantic checks keys against each other only when each key is valid by itself. So wrong keys are removed from a
    copy, and the rest is checked again, until no new errors appear.
    """
    try:
        return Examined(model.model_validate(document.data), [], frozenset())
    except ValidationError as error:
        groups = _grouped(error, model)
    found = _problems(groups, document, model)
    data, wrong = copy.deepcopy(document.data), set(groups)
    value: M | None = None
    for _ in range(_ROUNDS):
        for trail in groups:
            _take_out(data, trail, model)
        try:
            value = model.model_validate(data)
            break
        except ValidationError as later:
            groups = _grouped(later, model)
        if wrong & set(groups):
            break  # the removal did not help: another round would find nothing new
        given = {
            t: {dotted(t) * g.startswith(".") + g for d in ds for g in d.get("ctx", {}).get("given", ())}
            for t, ds in groups.items()
        }
        spoilt = {dotted(trail) for trail in wrong}
        found += _problems({t: ds for t, ds in groups.items() if not given[t] & spoilt}, document, model)
        wrong |= set(groups)
    return Examined(value, in_order(found), frozenset(dotted(trail) for trail in wrong))


def in_order(problems: Iterable[Problem]) -> list[Problem]:
    """Problems of one file, sorted by line; those of flags come last."""
    return sorted(problems, key=lambda problem: _line(problem.where))


def _take_out(data: dict[str, Any], trail: Trail, model: Model) -> None:
    """Remove a key, so that its default applies; a required key and an item of a list get a valid example instead."""
    here: Any = data
    for step in trail[:-1]:
        index = isinstance(here, list) and isinstance(step, int) and step < len(here)
        here = here.get(step) if isinstance(here, dict) else here[int(step)] if index else None
    if isinstance(here, dict) and trail:
        here.pop(trail[-1], None)
        if not here and _group_at(trail[:-1], model) is None:  # all names of a group are wrong
            _take_out(data, trail[:-1], model)
    elif isinstance(here, list) and (group := getattr(_group_at(trail, model), "example", None)):
        here[int(trail[-1])] = dict(group)
    if len(trail) == 1 and (example := _example(trail, model)) and model.model_fields[str(trail[0])].is_required():
        data[str(trail[0])] = example


def _example(trail: Trail, model: Model) -> Any:
    """A valid value of a key, for the hint of `is missing`."""
    group = _group_at(trail[:-1], model)
    field = group.model_fields.get(str(trail[-1])) if group else None
    return next(iter((field.examples if field else None) or ()), None)


def _grouped(error: ValidationError, model: Model) -> dict[Trail, list[ErrorDetails]]:
    groups: dict[Trail, list[ErrorDetails]] = {}
    for detail in error.errors(include_url=False):
        groups.setdefault(_trail(detail, model), []).append(detail)
    # pydantic checks keys without a field last; here they come first: levels before hosts.
    free = {trail: _is_free(trail, model) for trail in groups}
    order: list[Trail] = []
    for _, same in groupby(groups, key=lambda trail: trail[:-1]):
        order += sorted(same, key=lambda trail: not free[trail])
    return {trail: groups[trail] for trail in order}


def _is_free(trail: Trail, model: Model) -> bool:
    """Whether a key is one that its group accepts without a field for it."""
    group = _group_at(trail[:-1], model)
    return group is not None and group.model_config.get("extra") == "allow" and trail[-1] not in group.model_fields


def _problems(groups: Mapping[Trail, list[ErrorDetails]], document: Document, model: Model) -> list[Problem]:
    # A misspelt required key is reported once, not also as missing.
    meant = {_key_meant(trail, model) for trail, details in groups.items() if details[0]["type"] == "extra_forbidden"}
    return [
        _problem(trail, details, document, model)
        for trail, details in groups.items()
        if details[0]["type"] != "missing" or dotted(trail) not in meant
    ]


def paths_of(model: Model, before: str = "") -> Iterator[str]:
    """Every dotted path that a file may have: `name`, `link`, `link.host`, ..."""
    for key, field in model.model_fields.items():
        yield before + key
        inner = model_in(field.annotation)
        if inner is not None:
            yield from paths_of(inner, f"{before}{key}.")


def _line(where: str) -> int:
    tail = where.rpartition(":")[2]
    return int(tail) if tail.isdigit() else 1 << 30


def model_in(annotation: Any) -> Model | None:
    """The model of a key that is a group."""
    if typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if is_group(annotation):
        return group_of(annotation)
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return next((m for a in typing.get_args(annotation) if (m := model_in(a)) is not None), None)
    return None


def _model_inside(annotation: Any) -> Model | None:
    """The model of the values of a mapping, or of the items of a list."""
    at = {dict: 1, list: 0, tuple: 0}.get(typing.get_origin(annotation))
    return None if at is None else model_in(typing.get_args(annotation)[at])


def _trail(detail: ErrorDetails, model: Model) -> Trail:
    """The path in the file: pydantic's loc without the names of union members that it appends."""
    path = str(detail["ctx"]["path"]) if detail["type"] == "heddle_at" else ""
    if path and not path.startswith("."):
        first = path.split(".")[0]
        # A group can also be inside another: `queues` in `frontend`.
        before = detail["loc"][: detail["loc"].index(first)] if first in detail["loc"] else ()
        return (*before, *path.split("."))
    trail: list[str | int] = []
    here: Model | None = model
    named = False  # the next step is a name that the file gave, as in link.exceptions
    inside: Model | None = None  # the model below such a name, as in queues.ecn.classes
    wrong_key = detail["loc"][-1:] == ("[key]",) and detail["type"] != "extra_forbidden"
    for step in detail["loc"][: -1 if wrong_key else None]:
        if here is not None:
            trail.append(step)
            field = here.model_fields.get(str(step))
            named = field is not None and typing.get_origin(field.annotation) is dict
            here = model_in(field.annotation) if field else None
            inside = _model_inside(field.annotation) if field else None
        elif named or isinstance(step, int):
            trail.append(step)
            here, named = inside, False
    return (*trail, *path.split(".")[1:])


def takes_list(trail: Trail, model: Model) -> bool:
    """Whether the value of a key is a list by itself. False for a key that the model does not have."""
    group = _group_at(trail[:-1], model)
    field = group.model_fields.get(str(trail[-1])) if group else None
    kinds = () if field is None else (field.annotation, *typing.get_args(field.annotation))
    return any(typing.get_origin(each) in (list, tuple, frozenset, set) for each in kinds)


def _group_at(trail: Trail, model: Model) -> Model | None:
    here: Model | None = model
    inside: Model | None = None
    for step in trail:
        field = here.model_fields.get(str(step)) if here else None
        here = model_in(field.annotation) if field else inside
        inside = _model_inside(field.annotation) if field else None
    return here


def _problem(trail: Trail, details: list[ErrorDetails], document: Document, model: Model) -> Problem:
    kinds = {d["type"] for d in details}
    detail = details[0]
    text = document.text(trail)
    path = dotted(trail) or "the file"
    what = f"{path}: {text}" if text else path
    example = _example(trail, model) if trail else None
    if "extra_forbidden" in kinds:
        return Problem(document.where(trail), path, "is not a key", _key_hint(trail, model))
    if len(details) > 1:
        why, hint = _union(details, text)
    elif detail["type"] == "missing":
        why, hint = "is missing", f"add {trail[-1]}: {example}" if example else "add it"
    elif detail["input"] is None and detail["type"] not in ("heddle_at", "heddle_unit"):
        why, hint = "has no value", f"write {trail[-1]}: {example}" if example else "set a value, or remove the key"
    elif detail["type"] in ("model_type", "model_attributes_type", "dict_type"):
        group = _group_at(trail, model)
        whole = ", ".join(f"{key}: {value}" for key, value in getattr(group, "example", {}).items())
        why, hint = "is not a group of keys", f"write it as {{{whole}}}" if whole else _legal(group)
        hint = f"write {trail[-1]}: {example}" if example else hint
    elif isinstance(detail["input"], dict | list) and detail["type"] not in _OF_LISTS:
        why, hint = f"is a {'group' if isinstance(detail['input'], dict) else 'list'}, but must be one value", ""
    elif detail["type"] == "string_type":
        why, hint = "is not a string", _quoted(trail, model, text)
    else:
        why, hint = _WORDS.get(detail["type"], _anything)(detail, text)
        hint = hint or _range(trail, model, text) if detail["type"] in _BOUNDS else hint
        hint = f"write {trail[-1]}: {example}" if example and detail["type"] in _OF_LISTS[1:] else hint
    return Problem(document.where(trail), what, why, hint)


def _legal(group: Model | None, words: str = "allowed keys") -> str:
    return f"{words}: {some_of([*group.model_fields])}" if group else ""


def _key_meant(trail: Trail, model: Model) -> str:
    """The key that the user most likely meant, or an empty string."""
    key = str(trail[-1])
    legal = list((_group_at(trail[:-1], model) or model).model_fields)
    elsewhere = [p for p in paths_of(model) if p.rpartition(".")[2] == key]
    longer = [k for k in legal if k.startswith(key + "_")]
    meant = getattr(model, "synonyms", {}).get(key.lower())
    return meant or next(iter([*longer, *elsewhere]), "") or nearest(key, legal)


def _key_hint(trail: Trail, model: Model) -> str:
    near = _key_meant(trail, model)
    return f"did you mean {near}?" if near else _legal(_group_at(trail[:-1], model) or model, "allowed")


def _union(details: list[ErrorDetails], text: str) -> tuple[str, str]:
    """Reason and hint for a key that accepts words or numbers: all that it accepts, in one sentence."""
    words: list[str] = []
    bounds = [d for d in details if d["type"] in _BOUNDS]
    for detail in details:
        if detail["type"] == "literal_error":
            words += _choices(detail)
    if bounds:
        why, _ = _bound(bounds[0], text)
        end = {"is below": "from", "is above": "up to"}.get(why.rpartition(" ")[0], "")
        return (
            why,
            f"allowed: {', '.join(words)}, or a number {end} {why.rpartition(' ')[2]}" if words and end else "",
        )
    return f"is not one of {', '.join(words)}, or a number", _near(text, words)


def _choices(detail: ErrorDetails) -> list[str]:
    return [w.strip().strip("'") for w in str(detail["ctx"]["expected"]).replace(" or ", ", ").split(",")]


def _near(text: str, words: list[str]) -> str:
    near = nearest(text, words)
    return f"did you mean {near}?" if near else ""


def _literal(detail: ErrorDetails, text: str) -> tuple[str, str]:
    return not_one_of(_choices(detail), text)


def not_one_of(words: list[str], text: str) -> tuple[str, str]:
    """The reason that `text` is wrong, since it is none of these words, and a hint."""
    if len(words) == 1:
        return f"is not {words[0]}, the only supported value", ""
    return f"is not one of {', '.join(words)}", _near(text, words)


def _number(value: int, text: str) -> str:
    if text.lower().endswith(("bit", "bit/s")):
        return format_rate(value)
    return format_duration(value) if _DURATION.fullmatch(text) else str(value)


def _bound(detail: ErrorDetails, text: str) -> tuple[str, str]:
    (side, limit), *_ = detail["ctx"].items()
    words = {"ge": "is below", "gt": "is not above", "le": "is above", "lt": "is not below"}
    return f"{words[side]} {_number(limit, text)}", ""


def _range(trail: Trail, model: Model, text: str) -> str:
    group = _group_at(trail[:-1], model)
    field = group.model_fields.get(str(trail[-1])) if group else None
    if field is None:
        return ""
    low = next((m.ge for m in field.metadata if hasattr(m, "ge")), None)
    high = next((m.le for m in field.metadata if hasattr(m, "le")), None)
    if low is None or high is None:
        return ""
    return f"allowed: {_number(low, text)} to {_number(high, text)}"


def _pattern(detail: ErrorDetails, text: str) -> tuple[str, str]:
    pattern = str(detail["ctx"]["pattern"])
    return "is not a valid name", PATTERNS.get(pattern, f"use a name that matches {pattern}")


def _ours(detail: ErrorDetails, text: str) -> tuple[str, str]:
    return str(detail["ctx"]["why"]), str(detail["ctx"].get("hint", ""))


def _boolean(detail: ErrorDetails, text: str) -> tuple[str, str]:
    word = {"yes": "true", "on": "true", "no": "false", "off": "false"}.get(text.lower())
    return "is not true or false", f"did you mean {word}?" if word else ""


def _quoted(trail: Trail, model: Model, text: str) -> str:
    """Quotes turn any value into a string; the hint is given only where this string would be legal."""
    group = _group_at(trail[:-1], model)
    field = group.model_fields.get(str(trail[-1])) if group else None
    patterns = [m.pattern for m in field.metadata if getattr(m, "pattern", None)] if field else []
    if not patterns:
        return f"write it as {field.default}" if field and isinstance(field.default, str) else ""
    if all(re.fullmatch(p, text) for p in patterns):
        return f'put it in quotes: "{text}"'
    return PATTERNS.get(patterns[0], f"use a value that matches {patterns[0]}")


def _anything(detail: ErrorDetails, text: str) -> tuple[str, str]:
    return f"is wrong: {detail['msg'][:1].lower()}{detail['msg'][1:]}", ""


def _whole(detail: ErrorDetails, text: str) -> tuple[str, str]:
    why = "is not a whole number"
    if text.startswith('"'):
        return why, "remove the quotes" if text.strip('"').isdecimal() else ""
    for read in (float, lambda t: int(t, 0)):
        with suppress(ValueError, OverflowError):
            if (value := read(text)) == int(value):
                return why, f"write {int(value)}" if len(str(int(value))) < 20 else ""
    return why, ""


_Wording = Callable[["ErrorDetails", str], tuple[str, str]]
_BOUNDS: Final = frozenset({"greater_than_equal", "greater_than", "less_than_equal", "less_than"})
_WORDS: Final[Mapping[str, _Wording]] = {
    **dict.fromkeys(_BOUNDS, _bound),
    "literal_error": _literal,
    "string_pattern_mismatch": _pattern,
    "heddle_at": _ours,
    "heddle_unit": _ours,
    "bool_type": _boolean,
    "bool_parsing": _boolean,
    **dict.fromkeys(("int_type", "int_from_float", "int_parsing", "int_parsing_size"), _whole),
    "float_type": lambda detail, text: ("is not a number", ""),
    **dict.fromkeys(
        ("list_type", "tuple_type"), lambda detail, text: ("is not a list", f"write it as [{text or '3'}]")
    ),
    "too_short": lambda detail, text: ("is empty", "remove it to use the default"),
}
