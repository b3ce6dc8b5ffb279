"""Old words of verbs and flags: they work for one version, and a note names the new ones.

In:  the words of a command line. What is old stands with what is new: `was` of a Verb and of an Option.
Out: the words of today, and one note for each old word; stderr gets it, so that stdout stays the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from heddle.cli.argv import Parameter, Verb


@dataclass(frozen=True, slots=True)
class Current:
    """A command line in the words of today. notes: what was old in it."""

    name: str
    words: list[str]
    notes: list[str]


def current(name: str, words: Sequence[str], verbs: Mapping[str, Verb]) -> Current:
    """The same command line in the words of today. A name that is not a verb is left to the caller."""
    now = _verb(name, list(words), verbs)
    return _flags(now, verbs[now.name]) if now.name in verbs else now


def old_words(verbs: Mapping[str, Verb]) -> dict[str, str]:
    """Each old word with its verb, as typed -> the new one: `lab` -> `workshop`, `up --explain` -> `up --dry-run`."""
    found = {old: verb.name for verb in verbs.values() for old in verb.was}
    for verb in verbs.values():
        for old, parameter in _old_flags(verb).items():
            found[f"{verb.name} {old}"] = f"{verb.name} {_new(parameter)}"
    return found


def _verb(name: str, words: list[str], verbs: Mapping[str, Verb]) -> Current:
    """`lab` for `workshop`; `paths --predict FABRIC` for `predict FABRIC`, wherever the flag stands."""
    for verb in verbs.values():
        for old in verb.was:
            was, _, flag = old.partition(" ")
            if was != name:
                continue
            if not flag:
                return Current(verb.name, words, [_note(old, verb.name)])
            at = next((i for i, word in enumerate(words) if word.partition("=")[0] == flag), None)
            if at is not None and "--" not in words[:at]:
                value = words[at].partition("=")[2]
                rest = [
                    *([value] if value else words[at + 1 : at + 2]),
                    *words[:at],
                    *words[at + (1 if value else 2) :],
                ]
                return Current(verb.name, rest, [_note(old, verb.name)])
    return Current(name, words, [])


def _flags(now: Current, verb: Verb) -> Current:
    """Old flags of this verb, before `--`."""
    old, words, notes = _old_flags(verb), list(now.words), list(now.notes)
    end = words.index("--") if "--" in words else len(words)
    for at, word in enumerate(words[:end]):
        flag, equals, value = word.partition("=")
        if flag not in old:
            continue
        parameter = old[flag]
        values = parameter.option.was[flag]
        if not equals and values and at + 1 < end:
            value = words[at + 1]
            words[at + 1] = values.get(value, value)
        words[at] = f"{parameter.flag}{equals}{values.get(value, value) if equals else ''}"
        shown = (
            (f"{flag} {value}", f"{_new(parameter)} {values[value]}") if value in values else (flag, _new(parameter))
        )
        notes.append(_note(*shown))
    return Current(now.name, words, notes)


def _old_flags(verb: Verb) -> dict[str, Parameter]:
    return {old: parameter for parameter in verb.parameters for old in parameter.option.was}


def _new(parameter: Parameter) -> str:
    return parameter.word.upper() if parameter.positional else parameter.flag


def _note(old: str, new: str) -> str:
    return f"note: {old} is now {new}; the next version of Heddle does not accept the old word"
