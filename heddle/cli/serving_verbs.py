"""The verbs that serve until they are ended: dashboard (the live page of labs, and metrics), mcp (an assistant)."""

from __future__ import annotations

from heddle.base.extras import DASHBOARD, MCP
from heddle.base.problems import InputError, Problem
from heddle.cli.argv import Option
from heddle.cli.console import Console
from heddle.cli.verbs import verb


@verb(
    group="Results",
    help={
        "lab": "which lab the address opens; the page can change to any other one",
        "port": Option("of the page (default: a free one)"),
        "bind": "address to listen on, beyond this machine too",
        "token_file": "file with the token, readable for its owner only; by default a token is made and printed",
    },
    positional=["lab"],
    extras=[DASHBOARD],
    root=True,
    files_in=["token_file"],
)
def dashboard(
    out: Console,
    lab: str | None = None,
    port: int | None = None,
    bind: str = "127.0.0.1",
    token_file: str | None = None,
) -> None:
    """Serve a live page of the running labs, and their metrics for Prometheus at /metrics, until Ctrl-C.

    The page shows use, queues, pauses and BGP of every link, runs and events; it runs collectives and takes links down
    and up. ./inv dashboard --port 8080 prints its address. Others reach it with --bind 0.0.0.0 and the token.
    """
    from heddle.base import state
    from heddle.base.files import real
    from heddle.lab.opening import open_lab
    from heddle_plugins.dashboard.access import make_token, read_token
    from heddle_plugins.dashboard.serving import Serving, listen

    if lab is not None and state.check_name(lab) not in state.labs():
        open_lab(lab)  # says why, and what to do
    token = read_token(real(token_file), token_file) if token_file is not None else make_token()
    where = listen(bind, port or 0, token)
    page = where.url
    # Browsers do not send what is behind `#`, so no log has it. A token of the user's own is not shown to others.
    url = page + (f"?lab={lab}" if lab else "") + (f"#token={token}" if token_file is None else "")

    def ready() -> None:
        if out.json:
            return out.result({"url": url, "metrics": f"{page}metrics"})
        out.show(f"dashboard: {url}\nmetrics:   {page}metrics")
        out.say("Ctrl-C ends it; labs keep running")
        if token_file is not None:
            out.say(f"the page asks for the token, which {token_file} has")
        else:
            out.say("the address contains the token: anyone with it can run collectives and take links down")
        return None

    if not out.json and not state.labs():
        out.say("no lab is running yet: the page shows one as soon as ./inv up has started it")
    Serving(where).serve(ready)


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
    import sys

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
