"""`@verb`: make a verb of a function, with the common behaviour of all verbs.

A verb's function gets a Console first, then the typed values. The decorator adds `--format` and `--on`. If the
verb needs them, it also gets root (through sudo), system packages, and extras (`--yes` installs both). A verb for
another place is sent there as it was typed; then nothing of this machine is checked. `Command.task` is the same for
invoke.
"""

from __future__ import annotations

import inspect
import os
import pkgutil
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from heddle.base import progname, resources
from heddle.base.declared import OUTPUT
from heddle.base.extras import Extra, how_installed, provided_by, require
from heddle.base.problems import MachineError, Problem
from heddle.base.resources import EXTRAS_LOCK, HERE
from heddle.cli.argv import (
    Option,
    Options,
    Parameter,
    Tool,
    Verb,
    check_format,
    declared_parameters,
    parameters_of,
    words_of,
)  # fmt: skip
from heddle.cli.console import Console
from heddle.cli.helptexts import SHARED
from heddle.places import choice
from heddle.places.choice import VARIABLE, Call

Arguments = Mapping[str, Any]
# A need is constant, or depends on the typed values (`up --dry-run` needs no root).
Need = bool | Callable[[Arguments], bool]
Packages = Sequence[str] | Callable[[Arguments], Sequence[str]]
Extras = Sequence[str] | Callable[[Arguments], Sequence[str]]

# The headings above the verbs, in the order in which they are listed.
GROUPS: Final = ("Start", "Lab", "Traffic", "Paths", "Queues", "Results", "Learn", "Elsewhere", "Heddle")
_FORMAT: Final = Parameter(
    "format",
    "str",
    "text",
    positional=False,
    option=Option("output format: text or json", ("text", "json"), group=OUTPUT),
)
WHERE: Final = Option(
    "where to run the verb: here, vm, or ssh:user@host[:port]", ("here",), value="PLACE", group=OUTPUT
)
_ON: Final = Parameter("on", "str", None, positional=False, option=WHERE)
_YES: Final = Parameter(
    "yes",
    "bool",
    default=False,
    positional=False,
    option=Option("install missing system packages without asking", group=OUTPUT),
)
_YES_EXTRAS: Final = replace(_YES, option=replace(_YES.option, help="install missing packages without asking"))


class LateParameters(Sequence[Parameter]):
    """Parameters that are made when they are needed: declared options need modules that most verbs do not."""

    def __init__(self, make: Callable[[], Sequence[Parameter]]) -> None:
        self._made = make

    def __len__(self) -> int:
        return len(self._made())

    def __getitem__(self, at: Any) -> Any:
        return self._made()[at]

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self._made())  # once, not for each of them


@dataclass(frozen=True, slots=True)
class Command:
    """A verb and the function that runs it with the values of its words, by name.

    root, packages: whether these need root, and which parts of the system (host/packages.py).
    """

    verb: Verb
    run: Callable[..., None]
    function: Callable[..., None]
    root: Callable[[Arguments], bool]
    packages: Callable[[Arguments], Sequence[str]]

    @property
    def text(self) -> str:
        """What the verb does, for its help; the first line is for the list."""
        return inspect.getdoc(self.function) or ""

    def task(self) -> Any:
        """The task of invoke. Its import takes as long as all of Heddle's own; only `invoke` itself needs it."""
        from invoke import Task

        def body(context: Any, **typed: Any) -> None:
            self.run(**typed)

        # `invoke --help VERB` and its completion read flags from the signature: the console takes the place of
        # invoke's context, and the common flags come at the end.
        signature = inspect.signature(self.function)
        common = [p for p in self.verb.parameters if p.name not in signature.parameters]
        extra = [inspect.Parameter(p.name, inspect.Parameter.KEYWORD_ONLY, default=p.default) for p in common]
        named = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        plain = [p.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD) for p in named]
        body.__signature__ = signature.replace(parameters=[*plain, *extra])  # type: ignore[attr-defined]
        body.__doc__ = self.function.__doc__
        helps = {p.name: p.option.help for p in self.verb.parameters}
        lists = [p.name for p in self.verb.parameters if p.kind == "list"]
        return Task(body, name=self.verb.name, auto_shortflags=False, iterable=lists, help=helps)


def verb(
    *,
    group: str = "",
    name: str = "",
    help: Options | None = None,
    options: str = "",
    positional: Sequence[str] = (),
    rest: str = "",
    rest_after_positionals: bool = False,
    root: Need = False,
    packages: Packages = (),
    extras: Extras = (),
    checkout: bool = False,
    files_in: Sequence[str] | Callable[[Arguments], Sequence[str]] = (),
    files_out: Sequence[str] = (),
    directory_out: bool = False,
    endings_here: Sequence[str] = (),
    lasting: bool = False,
    typed_in: bool = False,
    tool: Tool | None = None,
) -> Callable[[Callable[..., None]], Command]:
    """Make a verb of a function `(console, **typed)`.

    group: the heading above it in the list of verbs (GROUPS). help: the option of each parameter, or only its help,
    where it is not that of SHARED. A verb has `--on` itself where it accepts further places, the values of its option:
    for these it runs here. options: `module:name` of a function that lists declared options: the verb takes
    them, too, as `**options` by their words. positional: parameters with a default that can be typed without their
    flag. rest: the parameter that gets all other words. root, packages, extras: what the verb needs on this machine;
    packages are names of packages.py, extras those of base/extras.py. checkout: it works on Heddle's own source, which
    a wheel does not contain. tool: how an assistant gets it.
    files_in, files_out: parameters that name files it reads or writes; the verb opens them through `base.files.real`.
    files_in can be a function from the typed values to file names, for files that name other files.
    directory_out: files_out are directories. endings_here: suffixes of a file that it writes to the working directory
    when no name was typed.
    lasting: on another machine it continues when the connection breaks. typed_in: it reads stdin.
    """

    def decorate(function: Callable[..., None]) -> Command:
        called = name or function.__name__
        own = parameters_of(function, positional, help or {}, SHARED)
        asks = bool(packages or extras) and all(p.name != "yes" for p in own)
        on = next((p.option.values for p in own if p.name == "on" and isinstance(p.option.values, tuple)), None)
        common = [_FORMAT, *([_ON] if on is None else []), *([_YES_EXTRAS if extras else _YES] if asks else [])]
        defaults = {p.name: p.default for p in own if not p.required}

        def with_options() -> list[Parameter]:
            declared = declared_parameters(pkgutil.resolve_name(options)(), SHARED)
            return sorted([*declared, *own, *common], key=lambda p: p.option.group == OUTPUT)

        parameters = LateParameters(with_options) if options else [*own, *common]
        spec = Verb(called, parameters, rest, rest_after_positionals, checkout, tool, files_out, endings_here, group)

        def needs_root(typed: Mapping[str, Any]) -> bool:
            return root({**defaults, **typed}) if callable(root) else root

        def needed(typed: Mapping[str, Any]) -> Sequence[str]:
            return packages({**defaults, **typed}) if callable(packages) else packages

        def here(out: Console, yes: bool, typed: Mapping[str, Any]) -> None:
            full = {**defaults, **typed}
            if checkout and how_installed().prefix == HERE.root / ".venv":  # others are the user's
                from heddle.host.lockedpackages import ensure_locked

                ensure_locked(HERE.beside(EXTRAS_LOCK), "the packages of all extras", out.say)
            for extra in extras(full) if callable(extras) else extras:
                require(extra)
            if needs_root(typed):
                become_root(called)
            if parts := needed(typed):
                from heddle.host.packages import ensure

                ensure(parts, yes=yes, ask=out.confirm, say=out.say)
            function(out, **typed)

        def call_of(typed: Mapping[str, Any]) -> Call:
            full = {**defaults, **typed}
            return Call(
                words_of(spec, {**typed, "on": choice.HERE}),
                files_in=files_in(full) if callable(files_in) else _named(full, files_in),
                files_out=_named(full, files_out),
                directory_out=directory_out,
                endings_here=endings_here,
                lasting=lasting,
                typed_in=typed_in,
                yes=bool(typed.get("yes")),
            )

        def run(**typed: Any) -> None:
            out = Console(check_format(typed.get("format", "text")))
            yes = bool(typed.get("yes"))
            try:
                if checkout:
                    HERE.checkout(f"./inv {called}")
                with provided_by(_installer(out, yes, parameters)):
                    within = on is not None and typed.get("on") in on
                    place = None if within else choice.place_for(typed.pop("on", None))
                    if place is not None:
                        out.exit_code = place.run(call_of(typed), out)
                    else:
                        typed.pop("format", None)
                        if asks:
                            typed.pop("yes", None)  # else it belongs to the function
                        here(out, yes, typed)
            finally:
                out.close()
            if out.exit_code:
                raise SystemExit(out.exit_code)

        return Command(spec, run, function, needs_root, needed)

    return decorate


def _installer(out: Console, yes: bool, parameters: Sequence[Parameter]) -> Callable[[Extra], object]:
    """What installs a missing extra for a verb: with `--yes`, if the verb has that flag, else after a question."""

    def install(extra: Extra) -> object:
        from heddle.host.lockedpackages import provide

        has_flag = any(each.name == "yes" for each in parameters)
        return provide([extra], yes=yes if has_flag else None, ask=out.confirm, say=out.say)

    return install


def _named(typed: Arguments, names: Sequence[str]) -> list[str]:
    return [str(typed[name]) for name in names if typed[name] is not None]


# sudo clears the environment, and -E is often forbidden. These variables change the behaviour of verbs.
KEPT: Final = (
    progname.VARIABLE, "CI", "HEDDLE_DEBUG", "NO_COLOR", "TERM", "COLUMNS", "HEDDLE_FILES", "HEDDLE_FILES_ONLY",
    "HEDDLE_PLACE", "HEDDLE_KEEP_RUNS", "HEDDLE_KEEP_BYTES",
    "HEDDLE_CONTAINERLAB", "DOCKER_HOST", "KUBECONFIG", "GOPROXY", "GOTOOLCHAIN",
    "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip


def become_root(verb: str) -> None:
    """Return as root; else replace this process by itself under sudo. MachineError when that is not possible."""
    if os.geteuid() == 0:
        return
    # By its path when it is installed: root has another PATH.
    named = progname.CHECKOUT if progname.program() == progname.CHECKOUT else progname.path()
    typed = f"{named} {shlex.join(sys.argv[1:])}"
    sudo = shutil.which("sudo")
    if sudo is None:
        hint = f"run it as root: su -c {shlex.quote(typed)}"
        raise MachineError(Problem("", f"./inv {verb}", "needs root, but sudo is not installed", hint))
    if not sys.stdin.isatty() and subprocess.run([sudo, "-n", "true"], capture_output=True, check=False).returncode:
        hint = f"run it as root, or in a terminal: sudo {typed}"
        raise MachineError(Problem("", f"./inv {verb}", "needs root, and sudo needs a password", hint))
    from heddle.base.state import state_dir

    print(f"{verb} needs root: running it again through sudo", file=sys.stderr, flush=True)
    kept = [f"{name}={os.environ[name]}" for name in KEPT if name in os.environ]
    if not resources.HERE.is_checkout:  # the user could not remove compiled files of root with the package
        kept.append("PYTHONDONTWRITEBYTECODE=1")
    # The place is already chosen: root's config file must not change it.
    kept.append(f"{VARIABLE}=")
    again = ["env", f"HEDDLE_STATE_DIR={state_dir()}", *kept, *resources.HERE.command(), *sys.argv[1:]]
    os.execv(sudo, [sudo, "--", *again])  # noqa: S606  (no shell is wanted)
