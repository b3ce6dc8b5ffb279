"""The verb `dashboard`, which serves the live page of labs, and metrics, until it is ended."""

from __future__ import annotations

from heddle.base.extras import DASHBOARD
from heddle.base.files import real
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

    The page shows utilization, queues, pauses and BGP of every link, runs and events; it runs collectives and takes
    links down and up. ./inv dashboard --port 8080 prints its address. Others reach it with --bind 0.0.0.0 and the
    token.
    """
    from heddle.base import state
    from heddle.host.webaccess import make_token, read_token
    from heddle.host.webserver import listen
    from heddle.lab.opening import open_lab
    from heddle_plugins.dashboard.serving import Serving

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
