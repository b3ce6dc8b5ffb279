"""`./inv`: words -> a verb of tasks.py, or help, the list of verbs, the version, completion.

For `invoke` and `inv` the verbs are tasks, and nothing of invoke is overridden: both list, explain and complete them in
their own way. Words from a verb on are parsed here (`typed_to_invoke`). invoke's Program is not used, because

- its parser has no optional positionals (`up [FABRIC]`), takes the next word for another task (`./inv up demo`), and
  stops at the first mistake: argv.py reads what follows a verb;
- its run() ends Ctrl-C and mistakes in the words with exit code 1; here these are 130 and 2, and documents in JSON;
- its flags (--dry, --pty, --config, ...) and ~/.invoke.yaml are about shell commands, which no verb runs through it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

from heddle.base import resources
from heddle.base.declared import OUTPUT
from heddle.base.plugins import Registry, folder, own_plugins, parts
from heddle.base.problems import HeddleError, InputError, Problem, did_you_mean, nearest
from heddle.base.progname import as_started
from heddle.base.resources import HERE
from heddle.base.tables import filled, table, written
from heddle.base.version import VERSION
from heddle.cli import completion, endings, nccltests
from heddle.cli.argv import Parameter, Typed, Verb, parse, verb_hint, wants_json
from heddle.cli.helptexts import USUAL
from heddle.cli.oldnames import OLD, present_name
from heddle.cli.verbs import GROUPS, Command

Commands = Registry[Command]  # by the verb's name: those of tasks.py in its order, then those of plugins
_EXAMPLES: Final = "examples.txt"
_UNGROUPED: Final = "Arguments and flags"
_WHOLE: Final = "all"  # after --help
_EXAMPLES_SHOWN: Final = 2  # where `--help all` shows more
_COMPLETION: Final = "--print-completion-script"
_COMPLETE: Final = ["--complete", "--"]  # what the script types, before the words
# Flags without a verb, and their short forms.
_FLAGS: Final = {
    "--help": "show this help; ./inv VERB --help explains one verb",
    "--list": "list the verbs",
    "--version": "print Heddle's version",
}
_SHORT: Final = {"-h": "--help", "-l": "--list", "-V": "--version"}


def main(module: Mapping[str, Any], argv: Sequence[str] | None = None) -> int:
    """Run `./inv` with the verbs of `module` and return the exit code."""
    words = list(sys.argv if argv is None else argv)
    commands = commands_in(module)
    return endings.ended(lambda: _run(commands, words[1:]), words, as_json=wants_json(words[1:]))


def commands_in(module: Mapping[str, Any]) -> Commands:
    """The verbs of a module by their names, in its order, and those of plugins, which are loaded when they are used."""
    own = {each.verb.name: each for each in module.values() if isinstance(each, Command)}
    return Registry("verb", own, _fits)


def _fits(name: str, found: Any) -> str:
    if not isinstance(found, Command):
        return f"{found!r} is not made by @verb"
    return "" if found.verb.name == name else f"its name is {found.verb.name}"


class _Verbs(Mapping[str, Verb]):
    """The verbs of commands; names cost no import."""

    def __init__(self, commands: Commands) -> None:
        self._of = commands

    def __getitem__(self, name: str) -> Verb:
        return self._of[name].verb

    def __iter__(self) -> Iterator[str]:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)


def typed_to_invoke() -> list[str] | None:
    """The words from the verb on, when `invoke` or `inv` loads tasks.py; else None.

    Also None without a verb: invoke handles --list and --help VERB. Completion is handled here: invoke offers flags
    only, no values.
    """
    program = getattr(sys.modules.get("invoke.main"), "program", None)
    if program is None or not program.argv:
        return None
    if program.argv[1:3] == _COMPLETE:
        completed: list[str] = program.argv[1:]
        return completed
    unparsed: list[str] = program.core.unparsed
    if not unparsed or unparsed[0].startswith("-"):
        return unparsed or None
    words: list[str] = program.argv[1:]
    # invoke joins the words after -- into one text, so they are taken from argv.
    body = words.index("--") if "--" in words else len(words)
    return words[body - len(unparsed) :]


def _run(commands: Commands, words: Sequence[str]) -> None:
    """Run one verb with its words; or show help, the list or the version."""
    verbs = _Verbs(commands)
    if words[:2] == _COMPLETE:
        return written("".join(f"{each}\n" for each in completion.candidates(words[2:], verbs, list(_FLAGS))))
    if words and words[0].partition("=")[0] == _COMPLETION:
        return _print_script(words)
    at = next((i for i, word in enumerate(words) if not word.startswith("-")), len(words))
    flags = {_flag(word, verbs) for word in words[:at] if word != "--"}
    typed = list(words[at:])
    if typed[:1] == ["help"]:
        flags, typed = flags | {"--help"}, typed[1:3]
    if "--version" in flags:
        return written(f"Heddle {VERSION}\n")
    if "--list" in flags or not typed:
        return written(_listed(commands) if "--list" in flags else _help(commands))
    return _run_verb(commands, *typed, explain="--help" in flags)


def _run_verb(commands: Commands, typed: str, *words: str, explain: bool) -> None:
    name = present_name(typed, commands)
    if name not in commands:
        raise InputError(Problem("", f"./inv {name}", "is not a verb", verb_hint(name, commands)))
    command = commands[name]
    after = after_help(command.verb, ["--help", *words] if explain else words)
    if after is not None:
        return written(_help_of(command, whole=after == _WHOLE))
    for note in nccltests.NcclFlags.of(words, command.verb.flags).notes if name in nccltests.VERBS else []:
        print(as_started(note), file=sys.stderr)
    command.run(**parse(command.verb, words))
    return None


def _print_script(words: Sequence[str]) -> None:
    flag, _, shell = words[0].partition("=")
    shell = shell or "".join(words[1:2])
    if shell not in completion.SHELLS:
        raise InputError(
            Problem("", f"{flag} {shell}".strip(), "names no known shell", did_you_mean(shell, completion.SHELLS))
        )
    written(completion.script(shell))


def _flag(word: str, verbs: Mapping[str, Verb]) -> str:
    """A flag without a verb, in its long form; InputError with a suggestion when there is no such flag."""
    flag = _SHORT.get(word, word)
    if flag in _FLAGS:
        return flag
    name = OLD.get(typed := word.partition("=")[0], typed)
    after = sorted(each for each in verbs if name in getattr(_usable(verbs, each), "flags", ()))
    near = nearest(name, [*_FLAGS, *_SHORT, _COMPLETION])
    hint = f"did you mean {near}?" if near else "./inv --help lists the flags"
    if after and name not in _FLAGS:
        hint = f"write flags of a verb after it: ./inv {after[0] if len(after) == 1 else 'VERB'} {name}"
    raise InputError(Problem("", word if name in _FLAGS else name, "is not a flag of ./inv", hint))


def _usable(verbs: Mapping[str, Verb], name: str) -> Verb | None:
    """The verb; None where it is of a plugin that cannot be used."""
    with suppress(HeddleError):
        return verbs[name]
    return None


def after_help(verb: Verb, words: Sequence[str]) -> str | None:
    """The word after --help among Heddle's words, empty without one; None without --help, or in a command of `exec`."""
    for word, after in zip_longest(words, words[1:], fillvalue=""):
        if word in ("--help", "-h"):
            return after
        if word == "--" or (verb.rest_after_positionals and not word.startswith("-")):
            return None
    return None


def _help(commands: Commands) -> str:
    flags = table(["Flags", ""], [(f"  {flag}", what) for flag, what in _FLAGS.items()])
    codes = table(["Exit codes", ""], [(f"  {code}", what) for code, what in endings.EXIT_CODES.items()])
    more = "./inv VERB --help explains a verb. First steps: ./inv demo"
    return f"Usage: ./inv VERB [flags]\n\n{_listed(commands)}\n{flags}\n\n{codes}\n\n{more}\n"


def _listed(commands: Commands) -> str:
    """Verbs below the headings of their groups. Verbs for a checkout are listed only in one."""
    shown = [each for each in commands.values() if HERE.is_checkout or not each.verb.checkout]
    groups = {heading: [each for each in shown if each.verb.group == heading] for heading in GROUPS}
    groups["Verbs"] = [each for each in shown if each.verb.group not in GROUPS]
    rows = []
    for heading, some in groups.items():
        rows += [(heading, "")] if some else []
        rows += [(f"  {each.verb.name}", each.text.split("\n")[0]) for each in some]
    return table(rows[0], rows[1:]) + "\n"


def _help_of(command: Command, *, whole: bool) -> str:
    """A verb's usage, its docstring, its words and flags below the headings of their groups, and examples.

    whole: all of them, also where most users need only some.
    """
    verb, rows = command.verb, []
    whole = whole or verb.name not in USUAL
    for heading, found in help_rows(verb, whole=whole).items():
        rows += [(heading, ""), *((f"  {word}", what) for word, what in found)]
    flags = table(rows[0], rows[1:])
    more = "" if whole else f"\n./inv {verb.name} --help {_WHOLE} lists all flags and says more.\n"
    shown = examples_text(command, None if whole else _EXAMPLES_SHOWN)
    text = command.text if whole else command.text.partition("\n\n")[0]
    return f"Usage: {verb.usage}\n\n{filled(text)}\n\n{flags}\n{shown}{more}"


def help_rows(verb: Verb, *, whole: bool = True) -> dict[str, list[tuple[str, str]]]:
    """Heading -> each argument and flag below it as it is typed, and what it does. whole: not only the usual ones.

    Flags of nccl-tests that several verbs take have one row, which names the verb that explains them.
    """
    grouped = whole and any(p.option.group not in ("", OUTPUT) for p in verb.parameters)
    rows: dict[str, list[tuple[str, str]]] = {}
    elsewhere = []
    for p in verb.parameters:
        if p.option.group == nccltests.GROUP and verb.name != nccltests.EXPLAINING:
            elsewhere.append(p.option.short)
        elif whole or p.name in USUAL[verb.name]:
            heading = (grouped and p.option.group) or _UNGROUPED
            rows.setdefault(heading, []).append((_shown(verb, p), _explained(verb, p)))
    if elsewhere:
        does = f"./inv {nccltests.EXPLAINING} --help explains them"
        rows.setdefault(nccltests.GROUP if grouped else _UNGROUPED, []).append((" ".join(elsewhere), does))
    return rows


def _shown(verb: Verb, p: Parameter) -> str:
    """A word or flag as it is typed: `FABRIC`, `--out, -o OUT`, `--no-x`."""
    if p.positional or p.name == verb.rest:
        return p.word.upper()
    if p.kind == "bool":
        return f"--no-{p.word}" if p.default is True else p.flag
    return f"{p.flag}{f', {p.option.short}' if p.option.short else ''} {p.value}"


def _explained(verb: Verb, p: Parameter) -> str:
    """The help of a word or flag, with its values and its default."""
    option = p.option
    words = f"; {option.listed} {', '.join(option.offered(Typed(verb, p, in_help=True)))}" if option.listed else ""
    shows_default = p.kind in ("int", "float", "str") and p.default not in (None, "", inspect.Parameter.empty)
    return option.help + words + (f" (default: {p.default})" if shows_default else "")


@cache
def examples() -> Mapping[str, Mapping[str, str]]:
    """Verb -> the words after it -> what the line does: of the core, and of Heddle's own plugins."""
    files = [resources.HERE.content("templates") / "help", *map(folder, own_plugins())]
    return _examples_in([found for each in files if (found := each / _EXAMPLES).is_file()])


def _examples_in(files: Sequence[Path]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    text = "\n".join(each.read_text(encoding="utf-8").rstrip() for each in files)
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    for line, does in zip(lines[::2], lines[1::2], strict=True):
        verb, _, words = line.removeprefix("./inv ").partition(" ")
        found.setdefault(verb, {})[words] = does.strip()
    return found


def examples_text(command: Command, most: int | None = None) -> str:
    """The part of a verb's help with its first examples; empty for a verb without any. Fits into 80 columns.

    A plugin of someone else has them in examples.txt beside the module of its verb.
    """
    verb, rows = command.verb.name, examples().get(command.verb.name, {})
    part = parts("verb").get(verb)
    if part is not None and not part.own:
        beside = Path(inspect.getfile(command.function)).with_name(_EXAMPLES)
        with suppress(OSError, ValueError):
            rows = _examples_in([beside]).get(verb, {})
    lines = [f"  {example_line(verb, words)}\n      {does}" for words, does in [*rows.items()][:most]]
    return "\n".join(["", "Examples", *lines, ""]) if lines else ""


def example_line(verb: str, words: str) -> str:
    """The line as it is typed."""
    return f"./inv {verb} {words}".rstrip()
