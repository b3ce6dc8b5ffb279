"""Values as JSON, for the calls between a coordinator and the agents of its shards (heddle/shards/).

In:  numbers, texts, bytes, lists, tuples, sets, mappings, paths, addresses, numpy arrays of numbers, and dataclasses,
     enums and named tuples of Heddle.
Out: JSON, and the same value again. Reading creates only these kinds: a class is looked up in a module of Heddle and
     must be a dataclass, an enum or a named tuple, so a text from elsewhere runs no code of its own.
"""

from __future__ import annotations

import base64
import ipaddress
import zlib
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any, Final, cast

_KIND: Final = "!"  # the key that names the kind of a value; mappings are lists of pairs, so it is never a key of one
_ADDRESSES: Final[Mapping[str, Callable[[str], Any]]] = {
    kind.__name__: kind
    for kind in (
        ipaddress.IPv4Address, ipaddress.IPv6Address, ipaddress.IPv4Network, ipaddress.IPv6Network,
        ipaddress.IPv4Interface, ipaddress.IPv6Interface,
    )
}  # fmt: skip
_ROOT: Final = __name__.partition(".")[0]
_NUMBERS: Final = frozenset("biufV")  # kinds of numpy's dtypes; V: records of numbers


def dump(value: Any) -> Any:
    """A value as data for JSON. TypeError for a kind that is not listed above."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    for kind, dumped in _DUMPERS:
        if kind(value):
            return dumped(value)
    return _dump_numpy(value)


def load(data: Any) -> Any:
    """The value of what `dump` wrote. ValueError for anything else."""
    if isinstance(data, list):
        return [load(each) for each in data]
    if not isinstance(data, dict):
        return data
    try:
        return _LOADERS[data[_KIND]](data)
    except (KeyError, TypeError, AttributeError, ImportError, zlib.error) as error:
        raise ValueError(f"is not a value: {error}") from None


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


def _load_array(data: Mapping[str, Any]) -> Any:
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
    return np.frombuffer(_unpacked(data["text"]), dtype).reshape([int(each) for each in data["shape"]]).copy()


def _name_of(kind: type) -> str:
    module = kind.__module__
    if module.partition(".")[0] != _ROOT:
        raise TypeError(f"{kind.__name__} cannot be sent to a shard")
    return f"{module}:{kind.__qualname__}"


def _class_of(name: str) -> type:
    module, _, path = name.partition(":")
    if module.partition(".")[0] != _ROOT:
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


def _load_data(data: Mapping[str, Any]) -> Any:
    kind = _class_of(data["of"])
    return kind(**{name: load(each) for name, each in data["fields"]}) if is_dataclass(kind) else _refused(data["of"])


def _load_enum(data: Mapping[str, Any]) -> Any:
    kind = _class_of(data["of"])
    return kind(data["value"]) if issubclass(kind, Enum) else _refused(data["of"])


def _load_tuple(data: Mapping[str, Any]) -> Any:
    items = [load(each) for each in data["items"]]
    return _class_of(data["of"])(*items) if "of" in data else tuple(items)


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

_LOADERS: Final[Mapping[str, Callable[[Mapping[str, Any]], Any]]] = {
    "data": _load_data,
    "enum": _load_enum,
    "tuple": _load_tuple,
    "array": _load_array,
    "map": lambda data: {load(key): load(each) for key, each in data["items"]},
    "set": lambda data: {load(each) for each in data["items"]},
    "frozenset": lambda data: frozenset(load(each) for each in data["items"]),
    "bytes": lambda data: _unpacked(data["text"]),
    "path": lambda data: Path(data["text"]),
    "address": lambda data: _ADDRESSES[data["of"]](data["text"]),
}


def _packed(content: bytes) -> str:
    return base64.b85encode(zlib.compress(content, 1)).decode()


def _unpacked(text: str) -> bytes:
    return zlib.decompress(base64.b85decode(text))
