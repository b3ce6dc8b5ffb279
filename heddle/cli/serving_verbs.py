"""The verb `mcp`, which serves an assistant until it is ended."""

from __future__ import annotations

import sys

from heddle.base.extras import MCP
from heddle.base.problems import InputError, Problem
from heddle.cli.console import Console
from heddle.cli.verbs import verb


@verb(
    group="Elsewhere",
    help={
        "allow_run": "also offer tools that change something: run (sends traffic), fault (breaks a part of a lab), "
        "report (writes a file)"
    },
    extras=[MCP],
    root=True,
    typed_in=True,
)
def mcp(out: Console, allow_run: bool = False) -> None:
    """Serve an assistant on stdin and stdout (Model Context Protocol): status, runs, paths, queues, compare, ...

    An assistant's program starts this verb; docs/assistants.md shows how. All tools read only, unless --allow-run.
    Results are the JSON documents of the verbs. It ends when the program closes stdin.
    """
    from heddle.cli.assistant import serve
    from heddle.cli.front import tasks
    from heddle.cli.program import commands_in

    if out.json:
        hint = "leave it out: results are JSON in any case"
        raise InputError(Problem("", "--format json", "has no meaning for mcp", hint))
    if sys.stdin.isatty():
        hint = "let an assistant's program start it: docs/assistants.md"
        raise InputError(Problem("", "./inv mcp", "speaks a protocol on stdin, and this is a terminal", hint))
    serve({name: command.verb for name, command in commands_in(vars(tasks())).items()}, changing=allow_run)
