"""Values as JSON, for the calls between a coordinator and the agents of its shards (heddle/shards/).

In:  numbers, texts, bytes, lists, tuples, sets, mappings, paths, addresses, numpy arrays of numbers, and dataclasses,
     enums and named tuples of Heddle.
Out: JSON, and the same value again. Reading creates only these kinds: a class is looked up in a module of Heddle and
     must be a dataclass, an enum or a named tuple, so a text from elsewhere runs no code of its own. The fields of a
     dataclass have the types that it declares. What a text unpacks to is limited. Tuples and addresses that occur again
     are references to the first: routes of many prefixes share their next hops.
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
_PLAIN: Final = frozenset({bool, int, float, str})
_REPEATED_ITEMS: Final = 1 << 26  # of all values that a text only repeats; 504 x 504 routes of 18 next hops have 2^25
_NUMBERS: Final = frozenset("biufV")  # kinds of numpy's dtypes; V: records of numbers


def dump(value: Any) -> Any:
    """A value as data for JSON. TypeError for a kind that is not listed above."""
    return _Writer().dump(value)


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
    known, args = _shape(kind)
    if known is Union:
        return any(conforms(value, each) for each in args)
    if known is Literal:
        return value in args
    if known is None:
        return True
    return isinstance(value, known) and (not args or all(conforms(*each) for each in _parts(value, args)))


@cache
def _shape(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """What a type is for `conforms`: Union, Literal or a class, and its arguments. None for one that is not known."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType, Literal):
        return Literal if origin is Literal else Union, args
    known = origin or (type(None) if kind is None else (int, float) if kind is float else kind)
    if not isinstance(known, tuple) and (not isinstance(known, type) or known is Any or hasattr(known, "_is_protocol")):
        return None, ()
    return known, args


def _parts(value: Any, args: Sequence[Any]) -> Iterable[tuple[Any, Any]]:
    """What a value contains, each part once, with the types that they must have."""
    if isinstance(value, Mapping):
        return [*_once(value, args[0]), *_once(value.values(), args[1])]
    if isinstance(value, tuple) and args[-1] is not Ellipsis:
        return zip(value, args, strict=True)
    return _once(value, args[0]) if isinstance(value, (Sequence, Set)) else ()


def _once(values: Iterable[Any], kind: Any) -> Iterable[tuple[Any, Any]]:
    return ((each, kind) for each in {id(each): each for each in values}.values())


_Kind = tuple[Any, list[str], Mapping[str, Any]]


class _Room:
    """Bytes that one value may still unpack to, and the parts that it may still have: written, and repeated.

    shared: what numbers repeat, with its number of parts. kinds: dataclasses, with names and types of their fields.
    """

    def __init__(self, left: int) -> None:
        self.left, self.items, self.repeated = left, LINE_ITEMS, _REPEATED_ITEMS
        self.shared: list[tuple[Any, int]] = []
        self.kinds: list[_Kind] = []

    def unpacked(self, text: str) -> bytes:
        """The content of `_packed`."""
        content = inflated(base64.b85decode(text), self.left)
        self.left -= len(content)
        return content

    def take(self, items: int) -> None:
        """Repeat so many parts."""
        self.repeated -= items
        if self.repeated < 0:
            raise ValueError(f"repeats more than {_REPEATED_ITEMS} values")


def _load(data: Any, room: _Room) -> Any:
    room.items -= 1
    if room.items < 0:
        raise ValueError(f"has more than {LINE_ITEMS} values")
    if isinstance(data, list):
        return [_load(each, room) for each in data]
    if not isinstance(data, dict):
        return data
    if type(kind := data[_KIND]) is not int:
        return _LOADERS[kind](data, room)
    value, items = room.shared[kind]  # the same as earlier
    room.take(items)
    return value


def _dump_numpy(_: _Writer, value: Any) -> Any:
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
    room.kinds.append((kind, [str(name) for name, _ in data["fields"]], _hints(kind)))
    return _made(room.kinds[-1], [each for _, each in data["fields"]], room)


def _load_like(data: Mapping[str, Any], room: _Room) -> Any:
    return _made(room.kinds[data["of"]], data["items"], room)


def _made(known: _Kind, items: Sequence[Any], room: _Room) -> Any:
    kind, names, hints = known
    values = {name: _load(each, room) for name, each in zip(names, items, strict=True)}
    for name, value in values.items():
        if not conforms(value, hints.get(name, Any)):
            raise ValueError(f"is not a {_name_of(kind)}: {name}")
    found = kind(**values)
    if _key(kind, [*values.values()]) is not None:
        room.shared.append((found, len(items)))
    return found


def _load_enum(data: Mapping[str, Any], _: _Room) -> Any:
    kind = _class_of(data["of"])
    return kind(data["value"]) if issubclass(kind, Enum) else _refused(data["of"])


def _load_tuple(data: Mapping[str, Any], room: _Room) -> Any:
    left = room.items + room.repeated
    found: Any = tuple(_load(each, room) for each in data["items"])
    if "of" in data:
        kind = _class_of(data["of"])
        found = kind(*found) if issubclass(kind, tuple) else _refused(data["of"])
    room.shared.append((found, left - room.items - room.repeated))
    return found


def _load_address(data: Mapping[str, Any], room: _Room) -> Any:
    room.shared.append((_ADDRESSES[data["of"]](str(data["text"])), 0))
    return room.shared[-1][0]


def _key(kind: Any, items: Sequence[Any]) -> Any:
    """What is equal for equal dataclasses, if one that is frozen has only numbers and texts; else None."""
    if not items or not kind.__dataclass_params__.frozen:
        return None
    types = tuple(map(type, items))
    return (kind, types, *items) if _PLAIN.issuperset(types) else None


class _Writer:
    """A value that is being written. Tuples, addresses, small dataclasses and names of fields are written once."""

    def __init__(self) -> None:
        self._shared: dict[Any, tuple[int, Any]] = {}  # by identity; with the object, so that none takes its place
        self._kinds: dict[type, tuple[int, list[str]]] = {}

    def dump(self, value: Any) -> Any:
        """A part of it."""
        kind: Any = type(value)
        return value if value is None or kind in _PLAIN else _writer_of(kind)(self, value)

    def _same(self, key: Any) -> Any:
        """The earlier one; None for the first."""
        found = self._shared.get(key)
        return None if found is None else {_KIND: found[0]}

    def data(self, value: Any) -> Any:
        kind = type(value)
        number, names = self._kinds.get(kind, (-1, []))
        names = names or [each.name for each in fields(value) if each.init]
        items = [getattr(value, name) for name in names]
        key = _key(kind, items)
        if key is not None and (same := self._same(key)) is not None:
            return same
        if kind not in self._kinds:
            self._kinds[kind] = len(self._kinds), names
        items = [self.dump(each) for each in items]
        if key is not None:
            self._shared[key] = len(self._shared), value
        if number < 0:
            rows = [list(pair) for pair in zip(names, items, strict=True)]
            return {_KIND: "data", "of": _name_of(kind), "fields": rows}
        return {_KIND: "like", "of": number, "items": items}

    def tuple(self, value: tuple[Any, ...]) -> Any:
        if (same := self._same(id(value))) is not None:
            return same
        named = {"of": _name_of(type(value))} if type(value) is not tuple else {}
        made = {_KIND: "tuple", "items": [self.dump(each) for each in value], **named}
        self._shared[id(value)] = len(self._shared), value
        return made

    def address(self, value: Any) -> Any:
        key = type(value), value
        if (same := self._same(key)) is not None:
            return same
        self._shared[key] = len(self._shared), value
        return {_KIND: "address", "of": type(value).__name__, "text": str(value)}

    def mapping(self, value: Mapping[Any, Any]) -> Any:
        return {_KIND: "map", "items": [[self.dump(key), self.dump(each)] for key, each in value.items()]}

    def set(self, value: Set[Any]) -> Any:
        kind = "frozenset" if isinstance(value, frozenset) else "set"
        return {_KIND: kind, "items": [self.dump(each) for each in value]}

    def sequence(self, value: Sequence[Any]) -> Any:
        return [self.dump(each) for each in value]


@cache
def _writer_of(kind: Any) -> Callable[[_Writer, Any], Any]:
    """What writes values of a class. A named tuple is a tuple, and a text a sequence."""
    if issubclass(kind, Enum):
        return lambda _, value: {_KIND: "enum", "of": _name_of(kind), "value": value.value}
    if is_dataclass(kind):
        return _Writer.data
    for known, write in (
        (tuple, _Writer.tuple), (Mapping, _Writer.mapping), (Set, _Writer.set),
        (bytes, lambda _, value: {_KIND: "bytes", "text": _packed(value)}),
        (Path, lambda _, value: {_KIND: "path", "text": str(value)}),
    ):  # fmt: skip
        if issubclass(kind, known):
            return write
    if kind.__name__ in _ADDRESSES:
        return _Writer.address
    return _Writer.sequence if issubclass(kind, Sequence) and not issubclass(kind, str) else _dump_numpy


_LOADERS: Final[Mapping[str, Callable[[Mapping[str, Any], _Room], Any]]] = {
    "data": _load_data,
    "like": _load_like,
    "enum": _load_enum,
    "tuple": _load_tuple,
    "array": _load_array,
    "map": lambda data, room: {_load(key, room): _load(each, room) for key, each in data["items"]},
    "set": lambda data, room: {_load(each, room) for each in data["items"]},
    "frozenset": lambda data, room: frozenset(_load(each, room) for each in data["items"]),
    "bytes": lambda data, room: room.unpacked(data["text"]),
    "path": lambda data, _: Path(data["text"]),
    "address": _load_address,
}


def _packed(content: bytes) -> str:
    return base64.b85encode(zlib.compress(content, 1)).decode()
