"""Words after `./inv VERB` -> keyword arguments.

In:  a Verb (its parameters, read from the function's signature) and the words.
Out: keyword arguments with their types; InputError collects every word that is wrong.
Why not invoke's parser: see program.py.
"""

from __future__ import annotations

import inspect
import math
import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, get_args

from heddle.base.declared import OptionField
from heddle.base.problems import HeddleError, InputError, Problem, Problems, nearest
from heddle.base.units import WHOLE_NUMBER
from heddle.cli import nccltests
from heddle.cli.oldnames import OLD, present_name


def _whole(text: str) -> int:
    if not WHOLE_NUMBER.fullmatch(text):  # int() alone accepts 1_000 and digits of other scripts
        raise ValueError
    return int(text)


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError
    return number


_KINDS: Final[Mapping[str, tuple[Callable[[str], Any], str]]] = {
    "int": (_whole, "a whole number"),
    "float": (_finite, "a number"),
}
_TWINS: Final = {"--lab": "--name", "--name": "--lab"}  # flags of different verbs for the same
_MOST: Final = 10**9  # of any number; verbs have limits of their own below that
_ENDLESS: Final = re.compile(r"[0-9]{301}")  # no value has such a number, and int() refuses more than 4300 digits
_SHOWN: Final = 80  # characters of a value that is too long


@dataclass(frozen=True, slots=True)
class Typed:
    """A word to complete. before: the words after the verb; last: the typed part of it; in_help: `--help` asks."""

    verb: Verb
    parameter: Parameter
    before: Sequence[str] = ()
    last: str = ""
    in_help: bool = False

    def value_of(self, *flags: str) -> str:
        """The typed value of a flag, or an empty text."""
        for at, word in enumerate(self.before):
            name, equals, value = word.partition("=")
            if name in flags:
                return value if equals else "".join(self.before[at + 1 : at + 2])
        return ""


@dataclass(frozen=True, slots=True)
class Option:
    """What users read about a parameter and what completion offers for it: declared once, beside its verb's others.

    values: the possible words, or `module:name` of a table, a Literal or a function without parameters that has them,
    or a function of what is typed. listed: the words before the values, where `--help` lists them. value: the
    placeholder of the value in usage lines, where the flag's own name is not clear enough. group: the heading above it
    in `--help`. short: `-n`. excludes: the parameter in whose place it is typed. assistants: a tool has it. least,
    most: the range of a number. closed: the values are all that there are.
    """

    help: str = ""
    values: Sequence[str] | str | Callable[[Typed], Sequence[str]] = ()
    listed: str = ""
    value: str = ""
    group: str = ""
    short: str = ""
    excludes: str = ""
    assistants: bool = True
    least: int | None = None
    most: int | None = None
    closed: bool = False

    def offered(self, typed: Typed) -> list[str]:
        """The values that a shell offers; none for a free value."""
        if isinstance(self.values, str):
            found = pkgutil.resolve_name(self.values)
            return list(get_args(found) or (found() if callable(found) else found))
        return list(self.values(typed) if callable(self.values) else self.values)


Options = Mapping[str, str | Option]  # by the name of the parameter; a text is an option with only a help


def group(name: str, options: Options) -> dict[str, Option]:
    """These options below one heading of `--help`."""
    return {
        key: replace(each if isinstance(each, Option) else Option(each), group=name) for key, each in options.items()
    }


@dataclass(frozen=True, slots=True)
class Tool:
    """A verb as a tool of an assistant (assistant.py). changes: it sends traffic or writes a file.

    without: words of parameters that are not offered, beside those that every verb has and those that name files to
    write. Only parameters that read may be offered. runs: names of parameters that name stored runs: an assistant
    types an ID or LAB:ID, and never a directory.
    """

    does: str
    without: Sequence[str] = ()
    changes: bool = False
    runs: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a verb; `name` is its name in Python, `flag` the name that users type."""

    name: str
    kind: str  # str, int, float, bool, list
    default: Any
    positional: bool
    option: Option = Option()

    @property
    def word(self) -> str:
        """`qp-mode` for qp_mode; a trailing underscore only avoids a conflict with Python's builtins."""
        return self.name.rstrip("_").replace("_", "-")

    @property
    def flag(self) -> str:
        """`--qp-mode`."""
        return f"--{self.word}"

    @property
    def value(self) -> str:
        """The placeholder of its value in usage lines: `PATH=VALUE` for --set."""
        return self.option.value or self.word.upper()

    @property
    def required(self) -> bool:
        """True when there is no default."""
        return self.default is inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class Verb:
    """The words that a verb accepts. `rest` takes words that are not for Heddle (the command of `exec`).

    group: the heading above it in the list of verbs.
    """

    name: str
    parameters: Sequence[Parameter]
    rest: str = ""
    rest_after_positionals: bool = False  # exec: all words after NODE; else only words after --
    checkout: bool = False  # it works on Heddle's own source, which an installed wheel does not have
    tool: Tool | None = None
    files_out: Sequence[str] = ()  # names of parameters
    endings_here: Sequence[str] = ()
    group: str = ""

    @property
    def flags(self) -> dict[str, Parameter]:
        """Flag -> parameter; `--no-x` sets a parameter to false that is true by default."""
        parameters = list(self.parameters)
        table = {p.flag: p for p in parameters if p.name != self.rest}
        table |= {p.option.short: p for p in parameters if p.option.short}
        table |= {f"--no-{p.word}": p for p in parameters if p.kind == "bool" and p.default is True}
        return table

    @property
    def positionals(self) -> list[Parameter]:
        """The positional parameters, in order."""
        return [p for p in self.parameters if p.positional and p.name != self.rest]

    @property
    def lab(self) -> Parameter | None:
        """The parameter of a lab that its name alone also sets, after or between the other words.

        None for a verb whose words are a program's.
        """
        found = (p for p in self.parameters if p.word == "lab" and not p.positional)
        return None if self.rest_after_positionals else next(found, None)

    @property
    def usage(self) -> str:
        """`./inv up FABRIC [flags]`; flags come before `rest`."""
        placed = [_placed(p) for p in self.positionals] + ["[LAB]"] * (self.lab is not None)
        words = ["[flags]", *placed] if self.rest_after_positionals else [*placed, "[flags]"]
        if self.rest:
            words.append(f"{self.rest.upper()}..." if self.rest_after_positionals else f"[-- {self.rest.upper()}...]")
        return " ".join([f"./inv {self.name}", *words])


def _placed(parameter: Parameter) -> str:
    """`FABRIC`, `[LAB]`, and `[SETTING...]` for a list."""
    word = parameter.word.upper() + ("..." if parameter.kind == "list" else "")
    return word if parameter.required else f"[{word}]"


def parameters_of(
    function: Callable[..., Any],
    positional: Sequence[str],
    options: Options,
    shared: Mapping[str, Option] | None = None,
) -> list[Parameter]:
    """Read a verb's parameters from its signature, without the first one (the console).

    shared: by name, what the options here leave out.
    """
    found = []
    for p in list(inspect.signature(function).parameters.values())[1:]:
        if p.kind is p.VAR_KEYWORD:  # declared_parameters has them
            continue
        note = str(p.annotation)
        kind = next((k for k in ("bool", "float", "int") if note.split(" |", maxsplit=1)[0] == k), "str")
        kind = "list" if note.startswith(("Sequence", "list")) else kind
        placed = p.name in positional or p.default is inspect.Parameter.empty
        name = p.name.rstrip("_")
        usual = (shared or {}).get(name, Option())
        own = options.get(name, Option())
        own = Option(own) if isinstance(own, str) else own
        option = replace(usual, **{f.name: value for f in fields(own) if (value := getattr(own, f.name))})
        found.append(Parameter(p.name, kind, p.default, placed, option))
    return found


def declared_parameters(declared: Sequence[OptionField], shared: Mapping[str, Option]) -> list[Parameter]:
    """Declared options (base/declared.py) as parameters. shared: by name, values that depend on what is typed."""
    return [
        Parameter(each.word, each.kind, each.default, positional=False, option=_option(each, shared))
        for each in declared
    ]


def _option(each: OptionField, shared: Mapping[str, Option]) -> Option:
    d = each.declared
    values = d.words or each.legal or shared.get(each.word, Option()).values
    limits = (d.least, d.most, d.closed or bool(each.legal or d.listed))
    return Option(d.help, values, d.listed, d.value, d.group, d.short, "", d.assistants, *limits)


def parse(verb: Verb, words: Sequence[str]) -> dict[str, Any]:
    """Keyword arguments for the verb; InputError with all mistakes in the words."""
    return _Parse(verb).run(list(words))


@dataclass(slots=True)
class _Parse:
    verb: Verb
    values: dict[str, Any] = field(default_factory=dict)
    problems: Problems = field(default_factory=Problems)
    typed: dict[str, tuple[str, str]] = field(default_factory=dict)  # parameter -> its name as typed, and the words

    def run(self, words: list[str]) -> dict[str, Any]:
        if self.verb.name in nccltests.VERBS:
            foreign = nccltests.NcclFlags.of(words, self.verb.flags)
            self.problems.found += foreign.problems
            words = foreign.rest
        waiting = self.verb.positionals
        while words:
            if self.verb.rest_after_positionals and not any(p.required for p in waiting):
                self.values[self.verb.rest] = words[1:] if words[0] == "--" else words
                break
            word = words.pop(0)
            if word == "--":
                if self.verb.rest:
                    self.values[self.verb.rest] = list(words)
                elif words:
                    self.problems.add(where="", what="--", why=f"has no meaning for {self.verb.name}", hint=self._see())
                break
            if word.startswith("-") and word != "-":
                self._flag(word, words)
            elif (lab := self.verb.lab) is not None and self._is_lab(lab, word, waiting):
                self._set(lab, word, word)
            elif waiting:
                # A list takes all remaining words.
                self._set(waiting[0] if waiting[0].kind == "list" else waiting.pop(0), word, word)
            else:
                self.problems.add(
                    where="", what=word, why=f"is an unexpected word for {self.verb.name}", hint=self._see(word)
                )
        for parameter in self.verb.parameters:
            if parameter.required and parameter.name not in self.values:
                what = f"{self.verb.name} {parameter.word.upper()}"
                self.problems.add(where="", what=what, why="is missing", hint=self._see())
        self._check_excluded()
        self.problems.raise_if_any()
        return self.values

    def _is_lab(self, lab: Parameter, word: str, waiting: Sequence[Parameter]) -> bool:
        """Whether the word names a lab: one that exists; or any, where the word can mean nothing else.

        A value of the next parameter is no lab, and neither is a file where that parameter can name one.
        """
        if lab.name in self.values or not _LAB.fullmatch(word) or any(p.required for p in waiting):
            return False
        with suppress(HeddleError):  # the verb reports a directory of labs that cannot be read
            if word in lab.option.offered(Typed(self.verb, lab)):
                a_file = Path(word).exists()
                return not any(
                    (a_file and p.word in _FILES) or word in p.option.offered(Typed(self.verb, p)) for p in waiting[:1]
                )
        return not waiting and not _PORT.fullmatch(word) and "--fabric" not in self.verb.flags

    def _check_excluded(self) -> None:
        """One problem for each parameter that was typed with others that stand in its place."""
        typed = [p for p in self.verb.parameters if p.name in self.values]
        for parameter in typed:
            if others := [p for p in typed if p.option.excludes == parameter.name]:
                names = ", ".join(p.option.short or p.flag for p in others)
                hint = f"use {parameter.flag}, or {names}"
                self.problems.add(where="", what=f"{parameter.flag} and {names}", why="exclude each other", hint=hint)

    def _see(self, spare: str = "") -> str:
        """The verb's usage; for a spare word, the flag for the lab or fabric that it may name."""
        first = next((str(self.values[p.name]) for p in self.verb.positionals if p.name in self.values), "")
        if spare and (hint := spare_hint(self.verb.name, first, spare)):
            return hint
        free = (p for p in self.verb.parameters if p.word in ("lab", "fabric") and p.name not in self.values)
        flags = [p.flag for p in free if not p.positional]
        if spare and flags:
            return "did you mean " + " or ".join(f"{flag} {spare}" for flag in flags) + "?"
        return f"usage: {self.verb.usage}; ./inv {self.verb.name} --help explains it"

    def _flag(self, word: str, words: list[str]) -> None:
        typed, equals, value = word.partition("=")
        flag = present_name(typed, self.verb.flags)
        parameter = self.verb.flags.get(flag)
        if parameter is None:
            near = nearest(flag, self.verb.flags)
            if near and not nearest(flag.strip("-"), [near.strip("-")]):
                near = ""  # --link is like --on only by its hyphens
            if (twin := _TWINS.get(flag, "")) in self.verb.flags:
                near = twin
            if key := self._key(flag):
                near = f"--set {key}={value or (words[0] if words and not words[0].startswith('-') else 'VALUE')}"
            hint = f"did you mean {near}?" if near else f"flags: {', '.join(self.verb.flags)}"
            if not near and self.verb.rest and not self.verb.rest_after_positionals:
                hint += f"; {self.verb.rest} come after --"
            self.problems.add(where="", what=flag, why=f"is not a flag of {self.verb.name}", hint=hint)
            # The word after an unknown flag is most likely its value, not a second mistake.
            if not equals and words and not words[0].startswith("-"):
                words.pop(0)
        elif parameter.kind == "bool":
            if equals:
                self.problems.add(
                    where="", what=word, why="has a value, but this flag takes none", hint=f"write {flag}"
                )
            self.values[parameter.name] = not flag.startswith("--no-") or flag == parameter.flag
        elif equals:
            self._set(parameter, value, word)
        elif not words or words[0].partition("=")[0] in self.verb.flags or words[0] == "--":
            hint = f"write {flag} {parameter.value}"
            self.problems.add(where="", what=flag, why="needs a value", hint=hint)
        else:
            value = words.pop(0)
            self._set(parameter, value, f"{typed} {value}")

    def _key(self, flag: str) -> str:
        """The key that --set takes and this flag names, wholly or by its last word; empty for none, or several."""
        name, setting = flag.removeprefix("--").replace("-", "_"), self.verb.flags.get("--set")
        if setting is None:
            return ""
        keys = [each.rstrip("=") for each in setting.option.offered(Typed(self.verb, setting))]
        ending = [key for key in keys if key.endswith(f".{name}")]
        return name if name in keys else ending[0] if len(ending) == 1 else ""

    def _set(self, parameter: Parameter, text: str, shown: str) -> None:
        if not text:  # most likely an unset shell variable; no parameter accepts an empty word
            what = f"{self.verb.name} {parameter.value}" if parameter.positional else parameter.flag
            self.problems.add(where="", what=what, why="is an empty word", hint=self._see())
            self.values.setdefault(parameter.name, None)
        elif _ENDLESS.search(text):
            self.problems.add(where="", what=f"{shown[:_SHOWN]}...", why="has a number of more than 300 digits")
            self.values.setdefault(parameter.name, None)
        elif parameter.kind == "list":
            self.values[parameter.name] = [*(self.values.get(parameter.name) or []), text]
        else:
            convert, name = _KINDS.get(parameter.kind, (str, "a text"))
            before = self.values.get(parameter.name)
            try:
                value = self.values[parameter.name] = convert(text)
                self._check_twice(parameter, shown, differs=before not in (None, value))
                if parameter.kind in _KINDS and abs(value) > _MOST:
                    said = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
                    self.problems.add(where="", what=said, why=f"is outside -{_MOST:,} to {_MOST:,}")
            except ValueError:
                self.problems.add(where="", what=shown, why=f"is not {name}")
                if parameter.required:
                    self.values[parameter.name] = None

    def _check_twice(self, parameter: Parameter, shown: str, *, differs: bool) -> None:
        """A problem for a value that stands there as a word and with its flag, or with an old flag and its new one."""
        name = re.split("[= ]", shown)[0] if shown.startswith("-") else ""
        other, there = self.typed.setdefault(parameter.name, (name, shown))
        if differs and other != name and {other, name} & {"", *OLD}:
            what = f"{there} and {shown}"
            self.problems.add(where="", what=what, why="exclude each other", hint="leave one of them out")


def words_of(verb: Verb, values: Mapping[str, Any]) -> list[str]:
    """The words that `parse` turns into these values, for the same verb in another place."""
    flags, placed = [], []
    for p in verb.parameters:
        value = values.get(p.name)
        if p.name == verb.rest or value is None or value == p.default:
            continue
        if p.required:
            placed.append(str(value))
        elif p.kind == "bool":
            flags.append(p.flag if value else f"--no-{p.word}")
        else:
            flags += [f"{p.flag}={each}" for each in (value if p.kind == "list" else [value])]
    rest = list(values.get(verb.rest) or []) if verb.rest else []
    if rest and (not verb.rest_after_positionals or rest[0] == "--"):
        rest.insert(0, "--")
    return [verb.name, *flags, *placed, *rest]


def wants_json(words: Sequence[str]) -> bool:
    """Whether the words request JSON: then mistakes in them are reported as JSON, too."""
    for i, word in enumerate(words):
        if word == "--":
            return False
        if word == "--format=json" or (word == "--format" and list(words[i + 1 : i + 2]) == ["json"]):
            return True
    return False


def check_format(text: str) -> str:
    """`text` or `json`; InputError otherwise."""
    if text not in ("text", "json"):
        near = nearest(text, ("text", "json"))
        raise InputError(Problem("", f"--format {text}", "is neither text nor json", near and f"did you mean {near}?"))
    return text


# Words of containerlab, and their counterparts here; without one a hint says so: a wrong guess is worse than none.
# Source: `containerlab --help` (0.79). Those of nccl-tests are in nccltests.py.
_NEAR: Final = 0.75  # similarity of two verbs: `start` is not a misspelt `status`, but `dwon` is `down`
_FILES: Final = ("fabric", "run", "runs")  # parameters that can name files, too
_LAB: Final = re.compile(r"[a-z][a-z0-9]{0,11}")  # as in a fabric file
_PORT: Final = re.compile(r"(eth|lo|ens|enp)[0-9a-z]*")

_VERBS: Final[Mapping[str, str]] = {
    "deploy": "./inv up FABRIC brings a fabric up; ./inv up FILE.clab.yml brings a containerlab topology up",
    "destroy": "./inv down LAB takes a lab down; ./inv down --all takes all labs down",
    "save": "./inv exec SWITCH vtysh -c 'show running-config' prints a configuration; ./inv render FABRIC writes all",
    "list": "./inv status lists labs, ./inv runs lists runs, ./inv --list lists verbs",
    "ls": "./inv status lists labs, ./inv runs lists runs, ./inv --list lists verbs",
    "ps": "./inv status lists labs, ./inv inspect lists the nodes of one",
    "nodes": "./inv inspect lists the nodes of a lab",
    "version": "./inv --version",
    "generate": "./inv render FABRIC writes a containerlab topology; a fabric file has its size (docs/fabric-file.md)",
    "ping": "./inv exec host1 ping ADDRESS",
    "vtysh": "./inv exec SWITCH vtysh",
    "ssh": "./inv exec NODE bash opens a shell in a node",
    "shell": "./inv exec NODE bash opens a shell in a node",
    "tcpdump": "./inv capture NODE:PORT shows the packets at a port",
    "all_reduce_perf": "./inv perf all_reduce",
    "alltoall_perf": "./inv perf alltoall",
}


def verb_hint(word: str, verbs: Iterable[str]) -> str:
    """The verb that a wrong word may mean; the list of verbs when none is similar."""
    known = sorted(verbs)
    if word in _VERBS:
        return _VERBS[word]
    near = nearest(word, known, _NEAR)
    return f"did you mean {near}?" if near else f"verbs: {', '.join(known)}"


def spare_hint(verb: str, first: str, spare: str) -> str:
    """`capture host1 eth1` -> `host1:eth1`. first: the word before the spare one. Empty without a guess."""
    if verb == "capture" and first and ":" not in first and _PORT.fullmatch(spare):
        return f"did you mean ./inv capture {first}:{spare}?"
    return ""
