"""The verb `mcp`: an assistant uses running labs through the Model Context Protocol."""

from __future__ import annotations

from heddle.base.extras import MCP
from heddle.base.problems import InputError, Problem
from heddle.cli.console import Console
from heddle.cli.verbs import verb


@verb(
    help={
        "allow_run": "also offer the tools run, which sends traffic through a lab, and report, which writes a file; "
        "without it, all tools only read"
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
    import sys

    from heddle.cli.assistant import serve
    from heddle.cli.front import tasks
    from heddle.cli.program import tasks_in

    if out.json:
        hint = "leave it out: results are JSON in any case"
        raise InputError(Problem("", "--format json", "has no meaning for mcp", hint))
    if sys.stdin.isatty():
        hint = "let an assistant's program start it: docs/assistants.md"
        raise InputError(Problem("", "./inv mcp", "speaks a protocol on stdin, and this is a terminal", hint))
    serve({name: task.verb for name, task in tasks_in(vars(tasks())).items()}, changing=allow_run)
