"""The keys of a workload file, of its jobs and of their steps. Strict: an unknown key is an error with its line.

In:  plain data of a YAML file. Out: WorkloadSpec, JobSpec, WorkloadStep, frozen. Options of a run stay as users type
them: run_options checks them. workloadfile.py and stepsfile.py check what needs several keys, files or ranks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from fractions import Fraction
from functools import partial
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, PlainValidator, create_model, model_validator
from pydantic_core import PydanticKnownError

from heddle.base.declared import on_off
from heddle.base.units import parse_duration, parse_size
from heddle.endpoints.runoptions import option_fields
from heddle.spec.keys import Strict, at, reading
from heddle.traffic.communicators import AUTO, parse_split
from heddle.traffic.matrixrows import slice_of
from heddle.traffic.readers import MOST_SIZE
from heddle.traffic.workload import BACKGROUND

KINDS: Final = ("compute", "collective", "matrix")
_MOST_REPEATS: Final = 10_000
_MOST_S: Final = 3600
_MOST_WHOLE: Final = 10**18
_MOST_RANKS: Final = 1 << 20
_SCALE: Final = re.compile(r"([0-9]{1,9})/([0-9]{1,9})|[0-9]{1,6}(\.[0-9]{1,9})?")


def _text(value: Any) -> Any:
    """One value of YAML as users type it; pydantic refuses all others."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value) if isinstance(value, int | float) else value


def _typed(reader: Callable[[str], Any], value: Any) -> Any:
    """What `reader` makes of a value's text, or ValueError with `reason; hint`."""
    if value is None or isinstance(value, dict | list):
        raise PydanticKnownError("string_type")
    with reading():
        return reader(_text(value))


def _reads(reader: Callable[[str], Any]) -> PlainValidator:
    return PlainValidator(partial(_typed, reader))


def _listed(value: Any) -> Any:
    if value is None or isinstance(value, dict):
        raise PydanticKnownError("string_type")
    found = [_text(each) for each in (value if isinstance(value, list) else [value])]
    if not all(isinstance(each, str) for each in found):
        raise at("", "is not a list of single values")
    return found


def _names(names: list[str]) -> list[str]:
    if not all(names):
        raise at("", "has an empty name", "write the name of a file, or the prefix of the files of all ranks")
    return names


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,18}", value) else value


def _seconds(text: str) -> float:
    try:
        seconds = float(text) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{0,9})?", text) else parse_duration(text) / 1e9
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= _MOST_S:
        raise ValueError(f"is not a time from 0 to {_MOST_S} s; write seconds, or a time as 500ms")
    return seconds


def _repeats(text: str) -> int:
    if text != "background" and not (re.fullmatch("[0-9]{1,8}", text) and 1 <= int(text) <= _MOST_REPEATS):
        raise ValueError(f"is neither a number from 1 to {_MOST_REPEATS} nor background")
    return BACKGROUND if text == "background" else int(text)


def _scale(text: str) -> Fraction:
    """`1/1000` or `0.5`."""
    if _SCALE.fullmatch(text) is None or (text.partition("/")[2].strip("0") == "" and "/" in text):
        raise ValueError("is not a factor; write scale: 1/1000 or 0.5")
    if not 0 < (scale := Fraction(text)) <= 1000:
        raise ValueError("is not between 0 and 1000; write scale: 1/1000 or 0.5")
    return scale


def _compute(text: str) -> int:
    if not 0 < (ns := parse_duration(text)) <= _MOST_S * 10**9:
        raise ValueError(f"is not between 0 and {_MOST_S} s; write a time of hardware, as 10us")
    return ns


def _size(text: str) -> int:
    if not 0 < (size := parse_size(text)) <= MOST_SIZE:
        raise ValueError("is not between 1 byte and 1 TiB; write size: 4M")
    return size


def _numbers(value: Any, of: str) -> list[int]:
    """Numbers of a slice `0:16:2`, or of a list of numbers and slices. of: ranks or NICs."""
    if value is None or isinstance(value, dict):
        raise PydanticKnownError("string_type")
    hint = f"write a number, 0:16:2 (from, to, step) or [0, 2, 4]; {of} are numbered from 0"
    found: list[int] = []
    for each in value if isinstance(value, list) else str(value).split(","):
        text = str(each).strip()
        if text.isdecimal() and text.isascii() and len(text) < 8:
            found.append(int(text))
        elif (part := slice_of(text, _MOST_RANKS)) is not None:
            found += part
        else:
            raise at("", f"{'' if text == str(value) else f'has {text}, which '}names no {of}", hint)
        if len(found) > _MOST_RANKS:
            raise at("", f"names more than {_MOST_RANKS:,} {of}", hint)
    if not found:
        raise at("", f"names no {of}", hint)
    return found


def _slots(value: Any) -> Any:
    """A number of ranks, or the NICs of a slice or a list."""
    if isinstance(value, list) or (isinstance(value, str) and ":" in value):
        if len(found := _numbers(value, "NICs")) < 2:
            raise at("", "has fewer than 2 NICs")
        return found
    if type(number := _whole(value)) is not int:
        raise PydanticKnownError("int_type")
    return number


def _once(ranks: list[int]) -> list[int]:
    if twice := [rank for rank, many in Counter(ranks).items() if many > 1]:
        raise at("", f"names rank {twice[0]} twice", "name each rank once")
    return ranks


def _split(text: str) -> str:
    with suppress(ValueError):
        if (found := parse_split(text)) != AUTO:
            return found
    hint = "write 'DIV 8', 'MOD 8', 'AND 0x7' or 'OR 0x7', or lists of ranks"
    raise ValueError(f"is not an operation and a number; {hint}")


def _groups(value: Any) -> Any:
    """Lists of ranks, or an operation and a number."""
    if not isinstance(value, list):
        return _typed(_split, value)
    lists = [each if isinstance(each, list) else str(each).split(",") for each in value or [[]]]
    groups = [_numbers(each, "ranks") for each in lists]
    _once([rank for group in groups for rank in group])
    return groups


Text = Annotated[str, BeforeValidator(_text)]
Name = Annotated[Text, Field(pattern="^[A-Za-z0-9][A-Za-z0-9_-]{0,23}$")]
Texts = Annotated[list[str], BeforeValidator(_listed)]
Whole = Annotated[int, BeforeValidator(_whole), Field(gt=-_MOST_WHOLE, lt=_MOST_WHOLE)]
Scale = Annotated[Fraction, _reads(_scale)]
_OF_KINDS: Final[dict[str, Any]] = {"int": Whole, "str": Text, "list": Texts}


class WorkloadStep(Strict):
    """One step of a job: a collective, a matrix or a computation. Other keys are options of its collective."""

    example: ClassVar[Mapping[str, Any]] = {"collective": "all-reduce", "size": "4M"}
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Text]

    compute: Annotated[int, _reads(_compute)] = 0
    collective: Text = ""
    matrix: Text = ""
    algorithm: Text = ""
    size: Annotated[int, _reads(_size)] = 0
    ranks: Annotated[list[int], PlainValidator(lambda value: _once(_numbers(value, "ranks")))] = Field(default=[])
    groups: Annotated[str | list[list[int]], PlainValidator(_groups)] = ""
    name: Name = ""
    after: Texts = Field(default=[])
    beside: Texts = Field(default=[], alias="with")

    @model_validator(mode="before")
    @classmethod
    def _is_one_thing(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        kinds = [key for key in KINDS if key in data]
        if len(kinds) > 1:
            raise at(f".{kinds[1]}", f"does not go together with {kinds[0]}", "write two steps")
        if "after" in data and "with" in data:
            raise at(".with", "does not go together with after", "keep one of the two")
        return data

    @model_validator(mode="after")
    def _has_no_rest(self) -> Self:
        if isinstance(self.groups, list) and self.ranks:
            raise at(".groups", "has ranks of its own", "remove ranks")
        if "with" in self.given and not self.beside:
            raise at(".with", "names no step", "write the name of an earlier step")
        for key in self.given if self.compute else ():
            if key not in ("compute", "name", "ranks", "after", "with"):
                raise at(f".{key}", "is not a key of a computation", "remove it")
        return self

    @property
    def given(self) -> list[str]:
        """The keys in the file."""
        fields = ((key, each.alias or key) for key, each in type(self).model_fields.items())
        return [*(word for key, word in fields if key in self.model_fields_set), *(self.model_extra or ())]


class _Job(Strict):
    """The keys of a job that are not options of a run. start: seconds. storage: ranks that store, of a trace."""

    example: ClassVar[Mapping[str, Any]] = {"collective": "all-reduce"}
    start: Annotated[float, _reads(_seconds)] = 0.0
    after: Text = ""
    repeat: Annotated[int, _reads(_repeats)] = 1
    ranks: Annotated[int | list[int], PlainValidator(_slots)] = 0
    steps: list[WorkloadStep] = Field(default=[], min_length=1, examples=["[{collective: all-reduce, size: 4M}]"])
    scale: Scale = Fraction(1)
    trace: Annotated[Texts, AfterValidator(_names)] = Field(default=[], min_length=1)
    time_scale: Scale = Fraction(1)
    trace_groups: Text = ""
    storage: Annotated[Whole, Field(ge=1, le=1024)] = 1
    skip_idle: Annotated[bool, _reads(on_off)] = False

    @property
    def given(self) -> dict[str, Any]:
        """The keys in the file, and their values."""
        return {key: value for key, value in self if key in self.model_fields_set}


_OPTIONS: Final[dict[str, Any]] = {
    each.word: (_OF_KINDS[each.kind], None) for each in option_fields() if each.word != "ranks"
}

# All keys of one job, and those of a file.
JobSpec: Final = create_model("JobSpec", __base__=_Job, **_OPTIONS)
WorkloadSpec: Final = create_model(
    "WorkloadSpec",
    __base__=JobSpec,
    jobs=(dict[Name, JobSpec], Field(default={}, min_length=1, examples=["{a: {collective: all-reduce}}"])),
    share_nics=(bool, False),
)
