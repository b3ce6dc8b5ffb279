"""The options of a run as users type them: those of every run, and those that a transport or a controller declares.

In:  typed values by the words of `option_fields`. Out: RunOptions; InputError with all errors in them.
A transport or a congestion control declares its options in its own file: a frozen dataclass (base/declared.py) in its
`options`. A collective declares them as its own fields. Flags, help, completion, arguments and tools follow from its
line in TRANSPORTS, CONTROLLERS or the list of patterns.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from heddle.base.declared import OptionField, options_of, read_options
from heddle.base.problems import InputError, Problems
from heddle.endpoints.congestion.controlled import CONTROLLERS, find_control
from heddle.endpoints.transports import TRANSPORTS, find_transport
from heddle.fabric.wiring import BACKEND
from heddle.traffic.admission import AdmissionOptions
from heddle.traffic.collectives import find_pattern, patterns, usual_algorithm
from heddle.traffic.options import NO_CONTROL, TRANSPORT, RunOptions

_OWNERS: Final[Mapping[str, Mapping[str, Any]]] = {"transport": TRANSPORTS, "cc": CONTROLLERS}


def own_fields() -> Iterator[tuple[str, str, OptionField]]:
    """The word that chooses an owner, its name, and each of the options that it declares."""
    for (collective, _), pattern in patterns(of_files=True).items():
        yield from (("collective", collective, each) for each in options_of(type(pattern)))
    for word, owners in _OWNERS.items():
        for name, kind in owners.items():
            for each in options_of(kind.options) if kind.options is not None else ():
                yield word, name, each


def option_fields() -> list[OptionField]:
    """Every option of a run, each once."""
    about = ", ".join(f"{name} ({kind.about})" for name, kind in CONTROLLERS.items())
    settings = [f"{each.name}=" for kind in CONTROLLERS.values() for each in kind.tunables]
    changes: Mapping[str, Mapping[str, Any]] = {
        "transport": {"words": [*TRANSPORTS]},
        "cc": {
            "words": [NO_CONTROL, *CONTROLLERS], "closed": True, "help": f"congestion control: {NO_CONTROL}, {about}",
        },
        "cc_set": {"words": list(dict.fromkeys(settings))},
    }  # fmt: skip
    apart = {each.name for each in options_of(AdmissionOptions)}
    own = sorted(options_of(RunOptions), key=lambda each: each.name in apart)
    found = {each.word: each for each in (*own, *(each for _, _, each in own_fields()))}
    for word, change in changes.items():
        found[word] = replace(found[word], declared=replace(found[word].declared, **change))
    return list(found.values())


def own_options(options: RunOptions) -> dict[str, Any]:
    """All options of its transport and its congestion control."""
    chosen = {"transport": options.transport, "cc": options.congestion}
    found = {each.name: each.usual for word, name, each in own_fields() if chosen.get(word) == name}
    return found | dict(options.own)


def plain(options: RunOptions) -> dict[str, Any]:
    """Plain data, with the options of transport, congestion control and collective beside the others."""
    found = asdict(options)
    del found["own"], found["parameters"], found["steps"]
    found |= {"steps": json.loads(options.steps)["parts"]} if options.steps else {}
    return {**found, **own_options(options), **dict(options.parameters)}


def run_options(*, live: bool = True, **typed: Any) -> RunOptions:
    """Options as the user typed them; InputError with all errors in them. live: for a run, not for a prediction."""
    if unknown := typed.keys() - {each.word for each in option_fields()}:
        raise TypeError(f"not an option of a run: {', '.join(sorted(unknown))}")
    problems = Problems()
    pattern = patterns().get((str(typed.get("collective")), usual_algorithm(str(typed.get("collective")))))
    if pattern is not None:
        typed |= {word: value for word, value in pattern.usual.items() if typed.get(word) is None}
    if (kind := TRANSPORTS.get(typed.get("transport") or TRANSPORT)) is not None:
        typed = {**kind.typed(typed)}
    found = read_options(RunOptions, typed, problems)
    own: dict[str, Any] = {}
    parameters: dict[str, Any] = {}
    for word, name, kind_of, values in (
        ("collective", found.collective, lambda: type(find_pattern(found.collective, found.algorithm)), parameters),
        ("transport", found.transport, lambda: find_transport(found.transport).options, own),
        ("cc", found.congestion, lambda: getattr(find_control(found.congestion), "options", None), own),
    ):
        try:
            values.update(_values(word, name, kind_of(), typed, problems))
        except InputError as error:  # nothing can be said about what an unknown one supports
            problems.found += error.problems
    if found.network != BACKEND and kind is not None and not kind.numbering.protocol:
        why = "has no lossless class, so it does not carry RoCEv2"
        problems.add(where="", what=f"--network {found.network}", why=why, hint="use --transport tcp")
    found.check_admission(problems)
    if live:
        found.check_live(problems)
    problems.raise_if_any()
    return replace(found, own=own, parameters=tuple(parameters.items()))


def _values(
    word: str, chosen: str, kind: type[Any] | None, typed: Mapping[str, Any], problems: Problems
) -> dict[str, Any]:
    """Options of the chosen owner that are not the default; an error for those of others."""
    own = () if kind is None else options_of(kind)
    read, known = None if kind is None else read_options(kind, typed, problems), {each.word for each in own}
    others = [(name, each) for owner, name, each in own_fields() if owner == word and each.word not in known]
    for flag, each in {each.flag: each for _, each in others}.items():
        if (value := typed.get(each.word)) not in (None, each.default, [], ()):
            texts = value if isinstance(value, list | tuple) else [value]
            owners = dict.fromkeys(f"--{word} {name}" for name, other in others if other.word == each.word)
            why, hint = f"is not for --{word} {chosen}", f"use {' or '.join(owners)}"
            if word == "collective" and kind is not None and f"--{word} {chosen}" in owners:  # of another algorithm
                of = ((name, pattern) for (collective, name), pattern in patterns().items() if collective == chosen)
                legal = [name for name, pattern in of if each.word in {own.word for own in options_of(type(pattern))}]
                why, hint = f"is not for --algorithm {kind.algorithm}", f"use --algorithm {' or '.join(legal)}"
            problems.add(where="", what=" ".join(f"{flag} {text}" for text in texts), why=why, hint=hint)
    return {each.name: value for each in own if (value := getattr(read, each.name)) != each.usual}


def typed_options(options: RunOptions) -> dict[str, Sequence[str]]:
    """Each option that is not the default, by its word, as it is typed; several texts where it is repeated."""

    def values(of: RunOptions) -> dict[str, Any]:
        own = {**of.own, **dict(of.parameters)}
        return {each.word: own.get(each.name, getattr(of, each.name, each.usual)) for each in option_fields()}

    usual = values(RunOptions(collective=options.collective))
    found: dict[str, Sequence[str]] = {"collective": [options.collective]}
    for each, value in zip(option_fields(), values(options).values(), strict=True):
        if each.word != "collective" and value != usual[each.word]:
            found[each.word] = [*each.write(value)]
    return found
