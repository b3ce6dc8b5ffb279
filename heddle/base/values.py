"""Values as JSON, for the calls between a coordinator and the agents of its shards (heddle/shards/).

In:  numbers, texts, bytes, lists, tuples, sets, mappings, paths, addresses, numpy arrays of numbers, and dataclasses,
     enums and named tuples of Heddle.
Out: JSON, and the same value again. Reading creates only these kinds: a class is looked up in a module of Heddle and
     must be a dataclass, an enum or a named tuple, so a text from elsewhere runs no code of its own. The fields of a
     dataclass have the types that it declares. What a text unpacks to is limited.
"""

from __future__ import annotations

import base64
import inspect
import ipaddress
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace, UnionType
from typing import Any, Final, Literal, Union, cast, get_args, get_origin, get_type_hints

from heddle.base.resources import PLUGINS
from heddle.base.untrusted import LINE_ITEMS, UNPACKED_BYTES, inflated

_KIND: Final = "!"  # the key that names the kind of a value; mappings are lists of pairs, so it is never a key of one
_ADDRESSES: Final[Mapping[str, Callable[[str], Any]]] = {
    kind.__name__: kind
    for kind in (
        ipaddress.IPv4Address, ipaddress.IPv6Address, ipaddress.IPv4Network, ipaddress.IPv6Network,
        ipaddress.IPv4Interface, ipaddress.IPv6Interface,
    )
}  # fmt: skip
_ROOTS: Final = (__name__.partition(".")[0], PLUGINS)
_MODULE: Final = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+", re.ASCII)
_NUMBERS: Final = frozenset("biufV")  # kinds of numpy's dtypes; V: records of numbers


def dump(value: Any) -> Any:
    """A value as data for JSON. TypeError for a kind that is not listed above."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    for kind, dumped in _DUMPERS:
        if kind(value):
            return dumped(value)
    return _dump_numpy(value)


def load(data: Any, kind: Any = Any, room: int = UNPACKED_BYTES) -> Any:
    """The value of what `dump` wrote. ValueError for anything else.

    kind: the type that it must have (see `conforms`). room: bytes that all its arrays and bytes may have.
    """
    try:
        found = _load(data, _Room(room))
        if not conforms(found, kind):
            raise ValueError(f"is a {type(found).__name__}, not {kind}")
    except ValueError:
        raise
    except Exception as error:  # of constructors, numpy and zlib, and what deep nesting raises
        raise ValueError(f"is not a value: {type(error).__name__}: {error}") from None
    return found


def result_kind(name: str) -> Any:
    """The type that a function of Heddle returns, `heddle.lab.lab:Lab.snapshot`; Any where it cannot be told."""
    module, _, path = name.partition(":")
    found: Any = import_module(module)
    for word in path.split("."):
        found = getattr(found, word)
    function: Any = inspect.unwrap(found)
    return _hints(function, "return").get("return", Any)


@cache
def _hints(found: Any, *names: str) -> Mapping[str, Any]:
    """The types of a class's fields, or those of some names. None where they exist only for type checkers."""
    some = SimpleNamespace(__annotations__={name: found.__annotations__[name] for name in names}) if names else found
    try:
        return get_type_hints(some, found.__globals__ if names else None)
    except (NameError, TypeError, AttributeError, KeyError):
        return {}


def conforms(value: Any, kind: Any) -> bool:
    """Whether a value has a type, with all that it contains; True for types that are not known here."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(conforms(value, each) for each in args)
    if origin is Literal:
        return value in args
    known = origin or (type(None) if kind is None else (int, float) if kind is float else kind)
    if not isinstance(known, tuple) and (not isinstance(known, type) or known is Any or hasattr(known, "_is_protocol")):
        return True
    return isinstance(value, known) and (not args or all(conforms(*each) for each in _parts(value, args)))


def _parts(value: Any, args: Sequence[Any]) -> Iterable[tuple[Any, Any]]:
    """What a value contains, with the types that it must have."""
    if isinstance(value, Mapping):
        return ((part, kind) for pair in value.items() for part, kind in zip(pair, args, strict=True))
    if isinstance(value, tuple) and args[-1] is not Ellipsis:
        return zip(value, args, strict=True)
    return ((each, args[0]) for each in value) if isinstance(value, (Sequence, Set)) else ()


class _Room:
    """Bytes that one value may still unpack to, and the parts that it may still have."""

    def __init__(self, left: int) -> None:
        self.left, self.items = left, LINE_ITEMS

    def unpacked(self, text: str) -> bytes:
        """The content of `_packed`."""
        content = inflated(base64.b85decode(text), self.left)
        self.left -= len(content)
        return content


def _load(data: Any, room: _Room) -> Any:
    room.items -= 1
    if room.items < 0:
        raise ValueError(f"has more than {LINE_ITEMS} values")
    if isinstance(data, list):
        return [_load(each, room) for each in data]
    if not isinstance(data, dict):
        return data
    return _LOADERS[data[_KIND]](data, room)


def _dump_numpy(value: Any) -> Any:
    import numpy as np

    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return value.item()
    if not isinstance(value, np.ndarray) or value.dtype.kind not in _NUMBERS or value.dtype.hasobject:
        raise TypeError(f"{type(value).__name__} cannot be sent to a shard")
    kind: Any = value.dtype.str
    if value.dtype.names:
        kind = [
            [name, part.base.str, list(part.shape), offset]
            for name, (part, offset, *_) in ((each, value.dtype.fields[each]) for each in value.dtype.names)
        ]
    size = value.dtype.itemsize
    return {_KIND: "array", "of": kind, "size": size, "shape": list(value.shape), "text": _packed(value.tobytes())}


def _load_array(data: Mapping[str, Any], room: _Room) -> Any:
    import numpy as np

    kind = data["of"]
    if isinstance(kind, str):
        dtype = np.dtype(kind)
    else:
        dtype = np.dtype({
            "names": [row[0] for row in kind],
            "formats": [(row[1], tuple(row[2])) for row in kind],
            "offsets": [row[3] for row in kind],
            "itemsize": data["size"],
        })  # fmt: skip
    if dtype.kind not in _NUMBERS or dtype.hasobject:
        raise ValueError(f"is not an array of numbers: {dtype}")
    return np.frombuffer(room.unpacked(data["text"]), dtype).reshape([int(each) for each in data["shape"]]).copy()


def is_module(name: str) -> bool:
    """Whether a text names a module of Heddle or its plugins that may be imported; `__main__` is a program."""
    return name.partition(".")[0] in _ROOTS and _MODULE.fullmatch(name) is not None


def _name_of(kind: type) -> str:
    module = kind.__module__
    if module.partition(".")[0] not in _ROOTS:
        raise TypeError(f"{kind.__name__} cannot be sent to a shard")
    return f"{module}:{kind.__qualname__}"


def _class_of(name: str) -> type:
    module, _, path = name.partition(":")
    if not is_module(module):
        raise ValueError(f"{name} is not a class of Heddle")
    found: Any = import_module(module)
    for word in path.split("."):
        found = getattr(found, word)
    named_tuple = isinstance(found, type) and issubclass(found, tuple) and hasattr(found, "_fields")
    known = isinstance(found, type) and (is_dataclass(found) or issubclass(found, Enum) or named_tuple)
    if not known or found.__module__ != module:
        raise ValueError(f"{name} is not a value of Heddle")
    return cast(type, found)


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is another kind of value")


def _load_data(data: Mapping[str, Any], room: _Room) -> Any:
    kind = _class_of(data["of"])
    if not is_dataclass(kind):
        _refused(data["of"])
    values, hints = {str(name): _load(each, room) for name, each in data["fields"]}, _hints(kind)
    for name, value in values.items():
        if not conforms(value, hints.get(name, Any)):
            raise ValueError(f"is not a {data['of']}: {name}")
    return kind(**values)


def _load_enum(data: Mapping[str, Any], _: _Room) -> Any:
    kind = _class_of(data["of"])
    return kind(data["value"]) if issubclass(kind, Enum) else _refused(data["of"])


def _load_tuple(data: Mapping[str, Any], room: _Room) -> Any:
    items = [_load(each, room) for each in data["items"]]
    if "of" not in data:
        return tuple(items)
    kind = _class_of(data["of"])
    return kind(*items) if issubclass(kind, tuple) else _refused(data["of"])


def _dump_data(value: Any) -> Any:
    rows = [[each.name, dump(getattr(value, each.name))] for each in fields(value) if each.init]
    return {_KIND: "data", "of": _name_of(type(value)), "fields": rows}


def _dump_tuple(value: tuple[Any, ...]) -> Any:
    named = {"of": _name_of(type(value))} if type(value) is not tuple else {}
    return {_KIND: "tuple", "items": [dump(each) for each in value], **named}


def _dump_set(value: Set[Any]) -> Any:
    return {_KIND: "frozenset" if isinstance(value, frozenset) else "set", "items": [dump(each) for each in value]}


# In this order: a named tuple is a tuple, and a text a sequence.
_DUMPERS: Final[Sequence[tuple[Callable[[Any], bool], Callable[[Any], Any]]]] = (
    (
        lambda value: isinstance(value, Enum),
        lambda value: {_KIND: "enum", "of": _name_of(type(value)), "value": value.value},
    ),
    (lambda value: is_dataclass(value) and not isinstance(value, type), _dump_data),
    (lambda value: isinstance(value, tuple), _dump_tuple),
    (
        lambda value: isinstance(value, Mapping),
        lambda value: {_KIND: "map", "items": [[dump(key), dump(each)] for key, each in value.items()]},
    ),
    (lambda value: isinstance(value, Set), _dump_set),
    (lambda value: isinstance(value, bytes), lambda value: {_KIND: "bytes", "text": _packed(value)}),
    (lambda value: isinstance(value, Path), lambda value: {_KIND: "path", "text": str(value)}),
    (
        lambda value: type(value).__name__ in _ADDRESSES,
        lambda value: {_KIND: "address", "of": type(value).__name__, "text": str(value)},
    ),
    (
        lambda value: isinstance(value, Sequence) and not isinstance(value, str),
        lambda value: [dump(each) for each in value],
    ),
)

_LOADERS: Final[Mapping[str, Callable[[Mapping[str, Any], _Room], Any]]] = {
    "data": _load_data,
    "enum": _load_enum,
    "tuple": _load_tuple,
    "array": _load_array,
    "map": lambda data, room: {_load(key, room): _load(each, room) for key, each in data["items"]},
    "set": lambda data, room: {_load(each, room) for each in data["items"]},
    "frozenset": lambda data, room: frozenset(_load(each, room) for each in data["items"]),
    "bytes": lambda data, room: room.unpacked(data["text"]),
    "path": lambda data, _: Path(data["text"]),
    "address": lambda data, _: _ADDRESSES[data["of"]](str(data["text"])),
}


def _packed(content: bytes) -> str:
    return base64.b85encode(zlib.compress(content, 1)).decode()
