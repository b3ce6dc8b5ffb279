"""invoke's Program with our parser, our help, and our endings.

Exit codes: 0 done and well, 1 a check failed, 2 the input is wrong, 3 the machine lacks something, 70 a defect of
Heddle, 130 Ctrl-C, 141 nobody reads on. With `--format json` an error is a JSON document on stdout too.
"""

from __future__ import annotations

import inspect
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from invoke import Collection, Config, Exit, ParseError, Program, Task
from invoke.parser import Argument

from heddle.base.problems import HeddleError, InputError, MachineError, Problem, did_you_mean, nearest
from heddle.base.tables import table, written
from heddle.cli import completion
from heddle.cli.argv import Verb, parse, wants_json
from heddle.cli.console import colour_wanted, problems_json

VERSION: Final = "0.1.0"
DEFECT: Final = 70  # EX_SOFTWARE of sysexits.h
INTERRUPTED: Final = 130  # as a shell reports SIGINT
PIPE: Final = 141  # as a shell reports SIGPIPE
_NOWHERE: Final = Problem("", "the working directory", "is not there any more", "cd to one that is")
_COMPLETION: Final = "--print-completion-script"
_SHELLS: Final = tuple(completion.SCRIPTS)
_CORE: Final = {
    "help": "what can be done; ./inv VERB --help says more of one verb",
    "list": "the verbs",
    "version": "Heddle's version",
}


class HeddleProgram(Program):  # type: ignore[misc]  # invoke is untyped for us
    """`./inv`."""

    argv: list[str]

    def core_args(self) -> list[Any]:
        """Flags without a verb; invoke's own ones about shells and configuration make no sense here."""
        return [
            Argument(names=("help", "h"), kind=bool, default=False, help=_CORE["help"]),
            Argument(names=("list", "l"), kind=bool, default=False, help=_CORE["list"]),
            Argument(names=("version", "V"), kind=bool, default=False, help=_CORE["version"]),
            Argument(names=("print-completion-script",), default="", help="a completion script: bash, zsh or fish"),
        ]

    def create_config(self) -> None:
        """No files: what a user keeps in ~/.invoke.yaml is about other projects."""
        self.config = Config(lazy=True)
        self.config.merge()

    def update_config(self, merge: bool = True) -> None:
        """Nothing of the command line is configuration."""

    def parse_core(self, argv: list[str] | None) -> None:
        """Flags before the verb go to invoke, all from the verb on to our own parser."""
        self.normalize_argv(argv)
        words = self.argv[1:]
        verb_at = next((i for i, w in enumerate(words) if not w.startswith("-")), len(words))
        if words[:2] == ["--complete", "--"]:
            verbs = {t.verb.name: t.verb for t in self.namespace.tasks.values()}
            written("".join(f"{each}\n" for each in completion.candidates(words[2:], verbs, [f"--{k}" for k in _CORE])))
            raise Exit
        if words[:1] == [_COMPLETION]:
            verb_at = len(words)
        self._check_shell(words)
        for word in words[:verb_at]:
            if word == "--":
                break
            if word.startswith("-"):
                self._check_core_flag(word)
        self.argv = [self.argv[0], *words[:verb_at]]
        self.parse_core_args()
        self.typed = words[verb_at:]
        if self.args.version.value:
            written(f"Heddle {VERSION}\n")
            raise Exit
        if self.args["print-completion-script"].value:
            written(completion.SCRIPTS[self.args["print-completion-script"].value])
            raise Exit

    def _check_shell(self, words: list[str]) -> None:
        flag, _, shell = words[0].partition("=") if words else ("", "", "")
        if flag == _COMPLETION and (shell := shell or "".join(words[1:2])) not in _SHELLS:
            raise InputError(Problem("", f"{flag} {shell}".strip(), "names no shell", did_you_mean(shell, _SHELLS)))

    def _check_core_flag(self, word: str) -> None:
        flag = word.partition("=")[0]
        flags = self.initial_context.flags  # knows aliases (-h) too, but does not list them
        if flag in flags or flag == "--":
            return
        legal = list(flags)
        after = sorted(t.verb.name for t in self.namespace.tasks.values() if flag in t.verb.flags)
        near = nearest(flag, legal)
        hint = f"did you mean {near}?" if near else "./inv --help shows what there is"
        if after:
            hint = f"flags of a verb stand after it: ./inv {after[0] if len(after) == 1 else 'VERB'} {flag}"
        raise InputError(Problem("", flag, "is not a flag of ./inv", hint))

    def parse_tasks(self) -> None:
        """One verb a line, by our parser; help where it is asked for."""
        self.parser = self._make_parser()
        self.tasks: list[tuple[str, dict[str, Any]]] = []
        words = list(self.typed)
        if words[:1] == ["help"]:
            words = [*words[1:2], "--help"] if words[1:] else []
        if not words:
            return
        task = self._task(words[0])
        if _asks_help(task.verb, words[1:]):
            self._print_verb_help(task)
            raise Exit
        self.tasks = [(words[0], parse(task.verb, words[1:]))]

    def _task(self, word: str) -> Any:
        tasks: dict[str, Any] = {t.verb.name: t for t in self.namespace.tasks.values()}
        if word not in tasks:
            near = nearest(word, tasks)
            hint = f"did you mean {near}?" if near else f"verbs: {', '.join(sorted(tasks))}"
            raise InputError(Problem("", f"./inv {word}", "is not a verb", hint))
        return tasks[word]

    def print_help(self) -> None:
        """Usage, verbs, flags."""
        written("Usage: ./inv VERB [flags]\n\n")
        self.list_tasks()
        written("\n" + table(["Flags", ""], [(f"  --{k}", v) for k, v in _CORE.items()]) + "\n")
        written("\n./inv VERB --help explains a verb. First steps: ./inv demo\n")

    def list_tasks(self) -> None:
        """Verbs in the order in which one needs them: the order of tasks.py."""
        rows = [(f"  {t.verb.name}", (inspect.getdoc(t) or "").split("\n")[0]) for t in self.namespace.tasks.values()]
        written(table(["Verbs", ""], rows) + "\n")

    def _print_verb_help(self, task: Any) -> None:
        verb: Verb = task.verb
        written(f"Usage: {verb.usage}\n\n{inspect.getdoc(task)}\n\n")
        rows = []
        for p in verb.parameters:
            shown = p.word.upper() if p.positional or p.name == verb.rest else p.flag
            if p.kind == "bool":
                shown = f"--no-{p.word}" if p.default is True else p.flag
            elif not p.positional and p.name != verb.rest:
                shown += f" {p.value}"
            told = p.kind in ("int", "float", "str") and p.default not in (None, "", inspect.Parameter.empty)
            rows.append((f"  {shown}", p.help + (f" (default {p.default})" if told else "")))
        written(table(["Words and flags", ""], rows) + "\n")

    def no_tasks_given(self) -> None:
        """Without a verb: help."""
        self.print_help()
        raise Exit

    def run(self, argv: list[str] | None = None, exit: bool = True) -> None:
        """Parse and execute; endings are `main`'s."""
        self.create_config()
        self.parse_core(argv)
        self.parse_collection()
        self.parse_tasks()
        self.list_format, self.list_root, self.list_depth = "flat", None, 0
        if self.args.list.value:
            self.list_tasks()
        elif self.args.help.value or not self.tasks:
            self.print_help()
        else:
            self.execute()


def _asks_help(verb: Verb, words: Sequence[str]) -> bool:
    """--help among our own words; not among those of a command that `exec` is to run."""
    for word in words:
        if word in ("--help", "-h"):
            return True
        if word == "--" or (verb.rest_after_positionals and not word.startswith("-")):
            return False
    return False


def main(module: Mapping[str, Any], argv: list[str] | None = None) -> int:
    """Run `./inv` with the tasks of `module` and return the exit code."""
    words = list(sys.argv if argv is None else argv)
    as_json = wants_json(words[1:])
    _open_streams()
    for ending in (signal.SIGTERM, signal.SIGHUP):  # a closed terminal is no reason to leave a half-made lab
        signal.signal(ending, _terminated)
    try:
        _run(module, words)
    except BrokenPipeError:
        return _nobody_reads()
    except (Exit, SystemExit) as end:
        return _flushed(end.code if isinstance(end.code, int) else 0)
    except (HeddleError, ParseError, KeyboardInterrupt) as error:
        return _ended(error, as_json)
    except FileNotFoundError as error:
        return _defect(error, words, as_json) if _is_somewhere() else _told("InputError", 2, [_NOWHERE], as_json)
    except Exception as error:
        return _defect(error, words, as_json)
    return 0


def _open_streams() -> None:
    """What the caller closed (`>&-`) is /dev/null for us: else the next file opened would stand in its place."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            fd = os.open(os.devnull, os.O_RDWR)
            if fd != number:
                os.dup2(fd, number)
                os.close(fd)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def _is_somewhere() -> bool:
    try:
        return Path.cwd().is_dir()
    except FileNotFoundError:
        return False


def _run(module: Mapping[str, Any], words: list[str]) -> None:
    collection = Collection(*[t for t in module.values() if isinstance(t, Task)])
    HeddleProgram(version=VERSION, namespace=collection, name="Heddle", binary="./inv").run(words)
    written()


def _terminated(number: int, frame: object) -> None:
    # As an exception, so that every `finally` on the way out does its work.
    raise SystemExit(128 + number)


def _flushed(code: int) -> int:
    try:
        written()
    except BrokenPipeError:
        return _nobody_reads()
    except MachineError as error:
        return _ended(error, as_json=False)
    return code


def _nobody_reads() -> int:
    # Python flushes stdout once more at exit, and would complain.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return PIPE


def _ended(error: BaseException, as_json: bool) -> int:
    if isinstance(error, HeddleError):
        return _told(type(error).__name__, error.exit_code, error.problems, as_json)
    if isinstance(error, KeyboardInterrupt):
        problem = Problem("", "./inv", "was interrupted", "./inv status shows what runs, ./inv down takes it away")
        return _told("Interrupted", INTERRUPTED, [problem], as_json)
    problem = Problem("", "./inv", f"cannot read this line: {error}", "./inv --help shows what there is")
    return _told("InputError", InputError.exit_code, [problem], as_json)


def _told(kind: str, code: int, problems: Sequence[Problem], as_json: bool) -> int:
    try:
        if as_json:
            _print_json(problems_json(kind, code, problems))
        red, plain = ("\033[31m", "\033[0m") if colour_wanted(sys.stderr) else ("", "")
        for problem in problems:
            head, newline, hint = str(problem).partition("\n")
            print(f"{red}{head}{plain}{newline}{hint}", file=sys.stderr)
    except BrokenPipeError:
        return _nobody_reads()
    return code


def _print_json(data: Mapping[str, Any]) -> None:
    try:
        written(json.dumps(data, indent=2) + "\n")
    except MachineError as error:  # stderr still says what the document would have said
        print(error, file=sys.stderr)


def _defect(error: Exception, words: Sequence[str], as_json: bool) -> int:
    if os.environ.get("HEDDLE_DEBUG"):
        traceback.print_exception(error)
        return DEFECT
    from heddle.base.state import state_dir

    report = state_dir() / f"crash-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    said = f"{type(error).__name__}: {error}".split("\n")[0][:200]
    hint = "HEDDLE_DEBUG=1 shows where"
    try:
        report.parent.mkdir(parents=True, exist_ok=True)
        report.write_text(f"Heddle {VERSION}: {words}\n\n" + "".join(traceback.format_exception(error)))
        hint = f"please report it with {report}"
    except OSError:
        pass
    return _told("Defect", DEFECT, [Problem("", said, "is a defect of Heddle, not yours", hint)], as_json)
