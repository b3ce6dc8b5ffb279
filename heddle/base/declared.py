"""Options, each declared once: as metadata of the field that holds its value.

In:  a frozen dataclass, `qps: Annotated[int, Declared("queue pairs per connection", least=1, most=128)] = 1`, and
     values as users type them: texts, whole numbers, lists of texts.
Out: the dataclass with checked values; every wrong value as what, why and hint. Flags, their help, completion, the
     arguments of tools and tests, and the keys of files are made from `options_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from types import NoneType
from typing import Annotated, Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

from heddle.base.problems import InputError, Problems, did_you_mean

Wrong = Callable[[str, str, str], None]  # takes what, why and hint of an error
Values = TypeVar("Values")
Word = TypeVar("Word", bound=str)
OUTPUT: Final = "Recording and output"  # the heading of what every verb has, where a verb has headings
_NOTHING: Final[tuple[Any, ...]] = (None, "", ())  # a typed default that is not shown


def chosen(flag: str, word: str, legal: Sequence[Word], why: str, wrong: Wrong) -> Word:
    """The word, if it is a legal one; else an error with `why`, and the first of the legal ones."""
    found = next((each for each in legal if each == word), None)
    if found is None:
        wrong(f"{flag} {word}", why, did_you_mean(word, legal))
    return found or legal[0]


def on_off(text: str) -> bool:
    """Whether the text is `on`; ValueError when it is neither `on` nor `off`."""
    if text not in ("on", "off"):
        raise ValueError(f"is not on or off; {did_you_mean(text, ('on', 'off'))}")
    return text == "on"


@dataclass(frozen=True, slots=True)
class Declared:
    """What users read and type of one option.

    help, group: the text, and the heading above it. word: as typed, where the field has another name.
    reads: a text to the value, or ValueError with `reason; hint`. gathers: all texts of an option that can be repeated.
    An option without either is a whole number, or one of the words of its Literal. Functions have names here: a lambda
    in an annotation knows no names of its module.
    typed: the default as users type it, and writes: a value as typed, once for each repetition; for an option with
    `reads` or `gathers`.
    least, most: the range of a whole number, with the hint for others. unlike: the error for a word that is not legal.
    words: what completion offers, as in Option; by default the words of the Literal. closed: no other word is legal, as
    with a Literal or `listed`. listed, value, short (the flag of nccl-tests): as in Option. assistants: an assistant's
    tool has it.
    """

    help: str
    group: str = ""
    word: str = ""
    reads: Callable[[str], Any] | None = None
    gathers: Callable[[Sequence[str], Wrong], Any] | None = None
    typed: str = ""
    writes: Callable[[Any], Sequence[str]] | None = None
    least: int | None = None
    most: int | None = None
    hint: str = ""
    unlike: str = "is not one of these words"
    words: Sequence[str] | str | Callable[[Any], Sequence[str]] = ()
    closed: bool = False
    listed: str = ""
    value: str = ""
    short: str = ""
    assistants: bool = True


@dataclass(frozen=True, slots=True)
class OptionField:
    """One declared option of a dataclass. kind: `int`, `str` or `list`, of what is typed. legal: the words of its
    Literal. usual: the default of the field.
    """

    name: str
    kind: str
    declared: Declared
    legal: tuple[str, ...]
    usual: Any

    @property
    def word(self) -> str:
        """`qp_mode`: the name of an argument and of a key."""
        return self.declared.word or self.name

    @property
    def flag(self) -> str:
        """`--qp-mode`."""
        return f"--{self.word.replace('_', '-')}"

    @property
    def default(self) -> Any:
        """As users type it; None for a default that is not shown."""
        usual = self.declared.typed if self.declared.reads else self.usual
        return () if self.kind == "list" else None if usual in _NOTHING else usual

    def read(self, typed: Any, wrong: Wrong) -> Any:
        """The value of what is typed; the default after an error. An argument of a test may have another type."""
        declared = self.declared
        if declared.gathers is not None:
            return declared.gathers([typed] if isinstance(typed, str) else [*map(str, typed)], wrong)
        if self.kind == "int" and (isinstance(typed, bool) or not isinstance(typed, int)):
            wrong(f"{self.flag} {typed}", "is not a whole number", declared.hint)
            return self.usual
        typed = typed if self.kind == "int" else str(typed)
        if declared.reads is not None:
            try:
                return declared.reads(typed)
            except ValueError as error:
                why, _, hint = str(error).partition("; ")
                wrong(f"{self.flag} {typed}", why, hint)
                return self.usual
        if self.legal:
            return chosen(self.flag, typed, self.legal, declared.unlike, wrong)
        least, most = declared.least, declared.most
        if (least is not None and typed < least) or (most is not None and typed > most):
            why = f"is below {least}" if most is None else f"is outside {least} to {most}"
            wrong(f"{self.flag} {typed}", why, declared.hint)
        return typed

    def write(self, value: Any) -> Sequence[str]:
        """A value as it is typed; several texts where the option is repeated."""
        return [str(value)] if self.declared.writes is None else self.declared.writes(value)


def options_of(kind: type[Any]) -> tuple[OptionField, ...]:
    """The declared options of a dataclass, in the order of its fields."""
    any_kind: Any = kind  # types of generic classes are not Hashable for mypy
    return _options_of(any_kind)


@cache
def _options_of(kind: Any) -> tuple[OptionField, ...]:
    hints = get_type_hints(kind, include_extras=True)
    found = []
    for each in fields(kind):
        hint = hints[each.name]
        declared = next((d for d in get_args(hint)[1:] if isinstance(d, Declared)), None)
        if get_origin(hint) is not Annotated or declared is None:
            continue
        types = [t for t in (get_args(hint)[0], *get_args(get_args(hint)[0])) if t is not NoneType]
        legal = next((get_args(t) for t in types if get_origin(t) is Literal), ())
        whole = int in types and declared.reads is None and declared.gathers is None
        kind_of = "list" if declared.gathers else "int" if whole else "str"
        usual = each.default if each.default is not MISSING else None
        found.append(OptionField(each.name, kind_of, declared, tuple(word for word in legal if word), usual))
    return tuple(found)


def read_options(kind: type[Values], typed: Mapping[str, Any], problems: Problems) -> Values:
    """The dataclass with the typed values, by their words; None stands for the default. problems: gets the errors."""

    def wrong(what: str, why: str, hint: str) -> None:
        problems.add(where="", what=what, why=why, hint=hint)

    given = {}
    for each in options_of(kind):
        if typed.get(each.word) is not None:
            try:
                given[each.name] = each.read(typed[each.word], wrong)
            except InputError as error:
                problems.found += error.problems
    return kind(**given)
