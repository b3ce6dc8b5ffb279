"""`./inv`: words -> a verb of tasks.py, or help, the list of verbs, the version, completion.

Verbs are invoke's tasks, and nothing of invoke is overridden: `invoke` and `inv` list, explain and complete them by
their own means, and hand over the words from a verb on (`typed_to_invoke`). invoke's Program is not used here, because

- its parser has no optional positionals (`up [FABRIC]`), takes the next word for another task (`./inv up demo`), and
  stops at the first mistake: argv.py reads what follows a verb;
- its run() ends Ctrl-C and mistakes in the words with exit code 1; here these are 130 and 2, and documents in JSON;
- its flags (--dry, --pty, --config, ...) and ~/.invoke.yaml are about shell commands, which no verb runs through it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from invoke import Config, Context, Task

from heddle.base.problems import InputError, Problem, did_you_mean, nearest
from heddle.base.resources import HERE
from heddle.base.tables import table, written
from heddle.base.version import VERSION
from heddle.cli import completion, endings
from heddle.cli.argv import Verb, parse, wants_json
from heddle.cli.hints import verb_hint
from heddle.cli.offers import listed

Tasks = Mapping[str, Any]  # by the verb's name, in the order of tasks.py
_COMPLETION: Final = "--print-completion-script"
_COMPLETE: Final = ["--complete", "--"]  # what the script types, before the words
_SHELLS: Final = tuple(completion.SCRIPTS)
# Flags without a verb, and their short forms.
_FLAGS: Final = {
    "--help": "what can be done; ./inv VERB --help says more of one verb",
    "--list": "the verbs",
    "--version": "Heddle's version",
}
_SHORT: Final = {"-h": "--help", "-l": "--list", "-V": "--version"}


def main(module: Mapping[str, Any], argv: Sequence[str] | None = None) -> int:
    """Run `./inv` with the tasks of `module` and return the exit code."""
    words = list(sys.argv if argv is None else argv)
    tasks = {task.verb.name: task for task in module.values() if isinstance(task, Task)}
    return endings.ended(lambda: _run(tasks, words[1:]), words, as_json=wants_json(words[1:]))


def typed_to_invoke() -> list[str] | None:
    """The words from the verb on, when it is `invoke` or `inv` that reads tasks.py; None when it is anything else.

    None too where no verb was typed: --list and --help VERB are invoke's own affair. Completion is ours: invoke offers
    flags, and no values.
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
    # invoke keeps words behind -- as one text; so they are taken from what was typed.
    body = words.index("--") if "--" in words else len(words)
    return words[body - len(unparsed) :]


def _run(tasks: Tasks, words: Sequence[str]) -> None:
    """Run one verb; or handle flags before it, or a missing verb."""
    verbs: dict[str, Verb] = {name: task.verb for name, task in tasks.items()}
    if words[:2] == _COMPLETE:
        return written("".join(f"{each}\n" for each in completion.candidates(words[2:], verbs, list(_FLAGS))))
    if words and words[0].partition("=")[0] == _COMPLETION:
        return _print_script(words)
    at = next((i for i, word in enumerate(words) if not word.startswith("-")), len(words))
    flags = {_flag(word, verbs) for word in words[:at] if word != "--"}
    typed = list(words[at:])
    if typed[:1] == ["help"]:
        flags, typed = flags | {"--help"}, typed[1:2]
    if "--version" in flags:
        return written(f"Heddle {VERSION}\n")
    if "--list" in flags or not typed:
        return written(_listed(tasks) if "--list" in flags else _help(tasks))
    return _run_verb(tasks, *typed, explain="--help" in flags)


def _run_verb(tasks: Tasks, name: str, *words: str, explain: bool) -> None:
    if name not in tasks:
        raise InputError(Problem("", f"./inv {name}", "is not a verb", verb_hint(name, tasks)))
    task = tasks[name]
    if explain or _asks_help(task.verb, words):
        return written(_help_of(task))
    # A context, as every task takes one; lazy, so that no configuration file is read for it.
    task(Context(Config(lazy=True)), **parse(task.verb, words))
    return None


def _print_script(words: Sequence[str]) -> None:
    flag, _, shell = words[0].partition("=")
    shell = shell or "".join(words[1:2])
    if shell not in _SHELLS:
        raise InputError(Problem("", f"{flag} {shell}".strip(), "names no shell", did_you_mean(shell, _SHELLS)))
    written(completion.script(shell))


def _flag(word: str, verbs: Mapping[str, Verb]) -> str:
    """A flag without a verb, in its long form; InputError with what is meant when it is none."""
    flag = _SHORT.get(word, word)
    if flag in _FLAGS:
        return flag
    name = word.partition("=")[0]
    after = sorted(verb.name for verb in verbs.values() if name in verb.flags)
    near = nearest(name, [*_FLAGS, *_SHORT, _COMPLETION])
    hint = f"did you mean {near}?" if near else "./inv --help shows what there is"
    if after:
        hint = f"flags of a verb stand after it: ./inv {after[0] if len(after) == 1 else 'VERB'} {name}"
    raise InputError(Problem("", word if name in _FLAGS else name, "is not a flag of ./inv", hint))


def _asks_help(verb: Verb, words: Sequence[str]) -> bool:
    """--help among our own words; not among those of a command that `exec` is to run."""
    for word in words:
        if word in ("--help", "-h"):
            return True
        if word == "--" or (verb.rest_after_positionals and not word.startswith("-")):
            return False
    return False


def _help(tasks: Tasks) -> str:
    """Usage, verbs, flags."""
    flags = table(["Flags", ""], [(f"  {flag}", what) for flag, what in _FLAGS.items()])
    more = "./inv VERB --help explains a verb. First steps: ./inv demo"
    return f"Usage: ./inv VERB [flags]\n\n{_listed(tasks)}\n{flags}\n\n{more}\n"


def _listed(tasks: Tasks) -> str:
    """Verbs in the order in which one needs them: the order of tasks.py. Those for a checkout are listed only there."""
    shown = {name: task for name, task in tasks.items() if HERE.is_checkout or not task.verb.checkout}
    rows = [(f"  {name}", (inspect.getdoc(task) or "").split("\n")[0]) for name, task in shown.items()]
    return table(["Verbs", ""], rows) + "\n"


def _help_of(task: Any) -> str:
    """A verb's usage, what its docstring says, and its words and flags."""
    verb: Verb = task.verb
    rows = []
    for p in verb.parameters:
        shown = p.word.upper() if p.positional or p.name == verb.rest else p.flag
        if p.kind == "bool":
            shown = f"--no-{p.word}" if p.default is True else p.flag
        elif not p.positional and p.name != verb.rest:
            shown += f" {p.value}"
        told = p.kind in ("int", "float", "str") and p.default not in (None, "", inspect.Parameter.empty)
        rows.append((f"  {shown}", p.help + listed(p) + (f" (default {p.default})" if told else "")))
    return f"Usage: {verb.usage}\n\n{inspect.getdoc(task)}\n\n{table(['Words and flags', ''], rows)}\n"
