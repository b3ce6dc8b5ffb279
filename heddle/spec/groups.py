"""Groups of a fabric file that are classes of the policy: their model for pydantic, and their values as in a file.

In:  a frozen dataclass whose fields are keys (heddle/spec/key.py).
Out: `group_of`: its model, from which errors, completion and the page of keys follow. `InFile`: metadata of a field of
a model whose value is such a class. `as_file`: a value as plain data of a file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cache, reduce
from types import GenericAlias, NoneType
from typing import Annotated, Any, Final, Literal, Union, cast, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler, create_model
from pydantic_core import CoreSchema, core_schema

from heddle.base.units import format_size, parse_size, shown
from heddle.spec.key import Key
from heddle.spec.keys import Duration, Size, Strict, Takes, at, reading, wrong

_UNITS: Final[Mapping[str, Any]] = {"": int, "size": Size, "duration": Duration}


@dataclass(frozen=True, slots=True)
class InFile:
    """Metadata of a field of a model: its value is a class whose fields are keys, and its group is read from a file."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def read(value: Any, group: Callable[[Any], Any]) -> Any:
            return value if isinstance(value, source) else _value(source, group(value))

        written = core_schema.plain_serializer_function_ser_schema(as_file)
        return core_schema.no_info_wrap_validator_function(
            read, handler.generate_schema(group_of(source)), serialization=written
        )


def is_group(kind: Any) -> bool:
    """Whether a type is a class whose fields are keys."""
    return isinstance(kind, type) and is_dataclass(kind)


@cache
def group_of(kind: Any) -> type[Strict]:
    """The model of a class whose fields are keys."""
    found: dict[str, Any] = {
        name: (Literal[word], Field(word, description=text))
        for name, (word, text) in getattr(kind, "fixed", {}).items()
    }
    parts = _parts(kind)
    found |= {
        each.name: (_type(each.hint, each.key), Field(each.default, description=each.key.help or None))
        for each in parts
        if not each.key.levels
    }
    base: Any = Strict
    for each in parts:
        if each.key.levels:
            value: Any = Annotated[_type(int, each.key), Field(description=each.key.help)]
            extra = {"__pydantic_extra__": dict[str, value]}
            more = {"__module__": __name__, "__annotations__": extra, "model_config": ConfigDict(extra="allow")}
            base = type(kind.__name__, (Strict,), more)
    return cast("type[Strict]", create_model(kind.__name__, __base__=base, __doc__=kind.__doc__, **found))


def as_file(policy: Any) -> dict[str, Any]:
    """The group of a value of such a class, as plain data."""
    values: dict[str, Any] = {}
    kind: Any = type(policy)
    for part in _parts(kind):
        value = reduce(getattr, part.path, policy)
        value = part.key.writes(value) if part.key.writes else list(value) if isinstance(value, tuple) else value
        values |= value if part.key.levels else {part.name: value}
    return group_of(kind).model_construct(**values).model_dump(mode="json", exclude_none=True)


def _value(kind: Any, group: Strict) -> Any:
    """The value of such a class, from its checked group. An error by `at` for keys that do not fit together."""
    values: dict[str, Any] = {}
    for part in _parts(kind):
        value = group.__pydantic_extra__ if part.key.levels else getattr(group, part.name)
        name, *inner = part.path
        if part.key.reads and part.name not in group.model_fields_set:
            continue  # the default is as in a file
        if inner:
            values[name] = replace(values[name], **{inner[0]: value})
        else:
            values[name] = tuple(value) if isinstance(value, list) else value
    found = kind(**values)
    for each in found.rules() if hasattr(kind, "rules") else ():
        raise at(each.path, each.why, each.hint, given=each.given)
    return found


@dataclass(frozen=True, slots=True)
class _Part:
    """One key of a group. path: of the field in the group's class, through an inner group where the key is lifted."""

    name: str
    path: tuple[str, ...]
    key: Key
    hint: Any
    default: Any


@cache
def _parts(kind: Any, *, lifted: bool = False) -> tuple[_Part, ...]:
    """The keys of a class's group, in the order of its fields; or those that are lifted to the group around it."""
    found: list[_Part] = []
    hints = get_type_hints(kind)
    for each in fields(kind):
        hint = hints[each.name]
        key: Key | None = each.metadata.get("key")
        if (key or is_group(hint)) and lifted == (key is not None and key.lifted):
            key = key or Key()
            default: Any = each.default if each.default_factory is MISSING else each.default_factory()
            default = key.file() if is_group(key.file) else key.writes(default) if key.writes else default
            default = list(default) if isinstance(default, tuple) else default
            found.append(_Part(key.name or each.name, (each.name,), key, hint, default))
        if is_group(hint) and not lifted:
            found += (replace(one, path=(each.name, *one.path)) for one in _parts(hint, lifted=True))
    return tuple(found)


def _type(hint: Any, key: Key) -> Any:  # noqa: PLR0911  (one for each kind of type)
    """The type of a key in a file, for pydantic."""
    bounds = Field(ge=key.least, le=key.most, gt=key.above)
    inside: Any = get_args(hint)
    if is_group(key.file or hint):
        return Annotated[key.file or hint, InFile(), *([BeforeValidator(_whole(key))] if key.one else [])]
    if key.auto:
        return Annotated[int | Literal["auto"], BeforeValidator(_or_auto(key)), Takes(_auto_words(key))]
    if key.reads:
        return Annotated[key.file, Field(min_length=key.least), AfterValidator(_reader(key.reads))]
    if get_origin(hint) is tuple:
        return list[inside[0]]
    if get_origin(hint) is Mapping:
        number, value = BeforeValidator(_reader(key.numbers, str)), _type(inside[1], Key())
        return GenericAlias(dict, (Annotated[int, number], value))
    if NoneType in inside:
        return Annotated[_type(inside[0], Key(unit=key.unit)) | None, bounds]
    if int in inside:
        return Union[*(_type(each, key) if each is int else each for each in inside)]
    if hint is int:
        return Annotated[_UNITS[key.unit], bounds]
    return Annotated[hint, bounds] if hint is float else hint


def _reader(read: Any, before: Any = lambda value: value) -> Callable[[Any], Any]:
    """`read`, with its ValueError, `reason; hint`, as an error of the key."""

    def reader(value: Any) -> Any:
        try:
            return read(before(value))
        except ValueError as error:
            why, _, hint = str(error).partition("; ")
            raise at("", why, hint) from None

    return reader


def _or_auto(key: Key) -> Callable[[Any], Any]:
    low, high = key.least or 0, key.most or 0

    def read(value: Any) -> int | Literal["auto"]:
        if value == "auto":
            return "auto"
        if key.unit:
            with reading(also=", or auto"):
                value = parse_size(value)
        elif isinstance(value, bool) or not isinstance(value, int):
            raise wrong("is not a whole number", f"write {low} to {high}, or auto")
        if not low <= value <= high:
            side = f"is below {low}" if value < low else f"is above {high}"
            raise wrong(side, f"allowed: auto, or {low} to {high}")
        return int(value)

    return read


def _auto_words(key: Key) -> str:
    low, high = key.least or 0, key.most or 0
    bounds = f"a size from {shown(low)} to {format_size(high)}" if key.unit else f"{low} to {high:,}"
    return f"`auto`, or {bounds}"


def _whole(key: Key) -> Callable[[Any], Any]:
    """A value that stands for the whole group sets its key `one`. An error then names the group."""
    one = next(part.key for part in _parts(key.file) if part.name == key.one)

    def read(value: Any) -> Any:
        return value if isinstance(value, dict) or is_dataclass(value) else {key.one: _or_auto(one)(value)}

    return read
