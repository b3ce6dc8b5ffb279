"""`@verb`: a function becomes an invoke task with the manners that every verb has.

A verb's function gets a Console first, then what was typed. The decorator adds `--format`; and, where the verb needs
the machine, root (through sudo) and system packages (`--yes` installs them).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from invoke import Task

from topologies.cli.argv import Parameter, Verb, check_format, parameters_of
from topologies.cli.console import Console

Arguments = Mapping[str, Any]
# A need is known at once, or depends on what was typed (`up --explain` needs no root).
Need = bool | Callable[[Arguments], bool]
Packages = Sequence[str] | Callable[[Arguments], Sequence[str]]

_FORMAT: Final = Parameter("format", "str", "text", positional=False, help="text for people, json for programs")
_YES: Final = Parameter("yes", "bool", default=False, positional=False, help="install missing system packages unasked")


def verb(
    *,
    name: str = "",
    help: Mapping[str, str] | None = None,
    positional: Sequence[str] = (),
    rest: str = "",
    rest_after_positionals: bool = False,
    root: Need = False,
    packages: Packages = (),
) -> Callable[[Callable[..., None]], Any]:
    """Make a task of a function `(console, **typed)`.

    positional: parameters that may be typed without their flag although they have a default. rest: the parameter that
    takes all other words. root, packages: what the verb needs of the machine; packages are names of packages.py.
    """

    def decorate(function: Callable[..., None]) -> Any:
        called = name or function.__name__
        own = parameters_of(function, positional, help or {})
        common = [_FORMAT, _YES] if packages else [_FORMAT]
        defaults = {p.name: p.default for p in own if not p.required}
        spec = Verb(called, [*own, *common], rest, rest_after_positionals)

        @functools.wraps(function)
        def body(context: Any, **typed: Any) -> None:
            out = Console(check_format(typed.pop("format", "text")))
            yes = typed.pop("yes", False)
            full = {**defaults, **typed}
            try:
                if root(full) if callable(root) else root:
                    from topologies.cli.privilege import become_root

                    become_root(called)
                needed = packages(full) if callable(packages) else packages
                if needed:
                    from topologies.packages import ensure

                    ensure(needed, yes=yes, ask=out.confirm, say=out.say)
                function(out, **typed)
            finally:
                out.close()
            if out.exit_code:
                raise SystemExit(out.exit_code)

        # invoke reads flags (for completion) from the signature: the console is its context, ours come at the end.
        signature = inspect.signature(function)
        extra = [inspect.Parameter(p.name, inspect.Parameter.KEYWORD_ONLY, default=p.default) for p in common]
        plain = [p.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD) for p in signature.parameters.values()]
        body.__signature__ = signature.replace(parameters=[*plain, *extra])  # type: ignore[attr-defined]
        del body.__wrapped__
        task = Task(body, name=called, auto_shortflags=False, iterable=[p.name for p in own if p.kind == "list"])
        task.verb = spec
        return task

    return decorate
