"""The verb `otg`, which serves a traffic generator over a lab until it is ended."""

from __future__ import annotations

from typing import Final

from heddle.base.extras import DASHBOARD
from heddle.base.files import real
from heddle.base.problems import InputError, Problem, did_you_mean
from heddle.cli.argv import Option
from heddle.cli.console import Console
from heddle.cli.verbs import verb

ACTIONS: Final = ("serve",)
_IDLE_S: Final = 300.0
_MOST_IDLE_S: Final = 86_400.0


@verb(
    group="Traffic",
    help={
        "action": Option("serve", ACTIONS),
        "lab": "the lab whose hosts are the ports",
        "port": Option("to listen on (default: a free one)"),
        "bind": "address to listen on; beyond this machine only with TLS",
        "token_file": "file with the token, readable for its owner only; by default a token is made and printed",
        "tls_cert": "certificate of the server, in PEM",
        "tls_key": "its key, in PEM",
        "idle": Option("seconds without a request, after which flows are stopped"),
    },
    positional=["action"],
    extras=[DASHBOARD],
    root=True,
    files_in=["token_file", "tls_cert", "tls_key"],
)
def otg(
    out: Console,
    action: str | None = None,
    lab: str | None = None,
    port: int | None = None,
    bind: str = "127.0.0.1",
    token_file: str | None = None,
    tls_cert: str | None = None,
    tls_key: str | None = None,
    idle: float = _IDLE_S,
) -> None:
    """Serve Open Traffic Generator: hosts of a running lab send flows that snappi's client configures, until Ctrl-C.

    Ports are hosts or NICs of the lab (location: host1, host1:eth2). Raw flows and RoCEv2 queue pairs, rates, bursts,
    metrics and captures; docs/otg.md says what is supported, and how rates scale.
    """
    from heddle.host.webaccess import is_loopback, make_token, read_token
    from heddle.host.webserver import TlsFiles, listen
    from heddle.lab.opening import open_lab
    from heddle_plugins.otg.serving import OtgServer

    if action is not None and action not in ACTIONS:
        raise InputError(Problem("", f"otg {action}", "is not an action of otg", did_you_mean(action, ACTIONS)))
    if not 1 <= idle <= _MOST_IDLE_S:
        raise InputError(Problem("", f"--idle {idle:g}", "is outside the range", f"use 1 to {_MOST_IDLE_S:g} seconds"))
    if (tls_cert is None) != (tls_key is None):
        flag = "--tls-cert" if tls_key is None else "--tls-key"
        raise InputError(Problem("", flag, "needs the other file, too", "use both: --tls-cert CERT --tls-key KEY"))
    if tls_cert is None and not is_loopback(bind):
        why = "would send the token without encryption"
        raise InputError(Problem("", f"--bind {bind}", why, "add --tls-cert and --tls-key"))
    opened = open_lab(lab)
    token = read_token(real(token_file), token_file) if token_file is not None else make_token()
    tls = None
    if tls_cert is not None and tls_key is not None:
        tls = TlsFiles(real(tls_cert), real(tls_key), f"--tls-cert {tls_cert} --tls-key {tls_key}")
    where = listen(bind, port or 0, token, tls)
    url = where.url.rstrip("/")
    # requests, the library of snappi's client, sends the user and the password of an address as Authorization: Basic.
    location = url.replace("://", f"://heddle:{token}@", 1) if token_file is None else url

    def ready() -> None:
        if out.json:
            return out.result({"lab": opened.name, "location": location, "url": url})
        out.show(f'snappi.api(location="{location}")')
        ports = [each.ref for each in opened.fabric.nics]
        out.say(f"ports of lab {opened.name}: {', '.join(ports[:8])}{', ...' if len(ports) > 8 else ''}")
        if token_file is not None:
            out.say(f"clients need the token of {token_file}: {url.replace('://', '://heddle:TOKEN@', 1)}")
        out.say("Ctrl-C ends it, and all flows")
        return None

    OtgServer(where, opened.name, idle).serve(ready)
