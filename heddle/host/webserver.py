"""A web server of Heddle: its socket, its token, TLS, bounds on requests, its life from start to Ctrl-C.

In:  address, port, token, and a site (an ASGI application). Out: nothing; `serve` returns after SIGINT, SIGTERM or
`stop`. InputError for an address, a port or files of TLS that cannot be used.
It needs the extra `dashboard`: import this module where a server starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import json
import logging
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from starlette.datastructures import Headers, MutableHeaders
from uvicorn.protocols.http.h11_impl import H11Protocol

from heddle.base.problems import InputError, Problem, trouble
from heddle.host.webaccess import HEADERS, PageAccess, Refusal

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK: Final = "127.0.0.1"
_ENDING_S: Final = 3  # for connections that are open when the server ends
_REQUEST_S: Final = 10.0  # for a whole request, from the connection or the last answer on
_CONNECTIONS: Final = 200  # at once: their descriptors must fit beside those of readers and runs


class Guard:
    """Checks every request before the site gets it, and puts the security headers on every answer.

    open_to_all: paths that show no lab, so they need no token. refused: the answer to a request that is refused.
    """

    def __init__(
        self,
        app: ASGIApp,
        access: PageAccess,
        refused: Callable[[Refusal], Response],
        open_to_all: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._app, self._access, self._refused, self._open_to_all = app, access, refused, open_to_all

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        path = scope["path"]
        headers = {name.lower(): value for name, value in Headers(scope=scope).items()}
        refused = self._access.refusal(scope["method"], path, headers, open_to_all=self._open_to_all(path))
        if refused is None:
            return await self._app(scope, receive, guarded)
        answer = self._refused(refused)
        if refused.status == 401:
            answer.headers["www-authenticate"] = "Bearer"
        return await answer(scope, receive, guarded)


async def body_of(request: Request, most_bytes: int) -> bytes:
    """The body of a request; InputError when it is longer."""
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > most_bytes:
            raise InputError(Problem("", "the request", f"has more than {most_bytes} bytes"))
    return bytes(data)


async def object_of(request: Request, most_bytes: int) -> dict[str, Any]:
    """The JSON object of a request; InputError for anything else."""
    try:
        found = json.loads(await body_of(request, most_bytes))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InputError(Problem("", "the request", "is not a JSON object"))
    return found


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """A certificate and its key, in PEM. shown: as the user typed them, for errors."""

    certificate: Path
    key: Path
    shown: str

    def check(self) -> None:
        """InputError when they cannot be used."""
        hint = "make both: openssl req -x509 -newkey rsa:2048 -nodes -days 90 -subj /CN=heddle -keyout KEY -out CERT"
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key, password="")
        except OSError as error:  # ssl.SSLError is one, too
            why = f"cannot be used for TLS: {error.strerror or error}"
            raise InputError(Problem("", self.shown, why, hint)) from None


@dataclass(frozen=True)
class Listening:
    """A socket that is bound, and its rules. tls: None for HTTP without it."""

    socket: socket.socket
    bind: str
    port: int
    token: str
    tls: TlsFiles | None = None

    @property
    def url(self) -> str:
        """The server's address."""
        host = f"[{self.bind}]" if ":" in self.bind else self.bind
        if ipaddress.ip_address(self.bind).is_unspecified:
            host = socket.gethostname()
        return f"{'http' if self.tls is None else 'https'}://{host}:{self.port}/"


def listen(bind: str, port: int, token: str, tls: TlsFiles | None = None) -> Listening:
    """Bind the socket. port: 0 for a free one. InputError for an address, a port or files that cannot be used."""
    if tls is not None:
        tls.check()
    address = LOOPBACK if bind == "localhost" else bind
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    except ValueError:
        hint = "use an IP address of this machine, or 0.0.0.0 for all of them"
        raise InputError(Problem("", f"--bind {bind}", "is not an IP address", hint)) from None
    if not 0 <= port <= 65535:
        raise InputError(Problem("", f"--port {port}", "is outside 0 to 65535", "leave it out: a free one is chosen"))
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((address, port))
        made.listen(128)
    except OSError as error:
        made.close()
        reasons = {
            errno.EADDRINUSE: ("is used by another process", "leave it out: a free port is chosen"),
            errno.EACCES: ("needs root", "use a port above 1023"),
        }
        if error.errno in reasons:
            why, hint = reasons[error.errno]
            raise InputError(Problem("", f"--port {port}", why, hint)) from None
        if error.errno == errno.EADDRNOTAVAIL:
            hint = "use one of `ip -brief address`, or 0.0.0.0 for all"
            raise InputError(Problem("", f"--bind {bind}", "is not an address of this machine", hint)) from None
        raise trouble(error, f"--bind {bind}") from None
    return Listening(made, address, made.getsockname()[1], token, tls)


class _Bounded(H11Protocol):
    """HTTP with bounds that uvicorn does not have: the number of connections, and the time until a request is whole."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Refuse a connection too many; else wait for its request."""
        super().connection_made(transport)
        if len(self.connections) > _CONNECTIONS:
            transport.close()
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """An answer ends: the next request may have begun before, and no more of it may come."""
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self._forget()
        super().connection_lost(exc)

    def _watch(self) -> None:
        if self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete:
            self._forget()  # the request is whole, and its answer may be a stream
        elif self._late is None:
            self._late = self.loop.call_later(_REQUEST_S, self.transport.close)

    def _forget(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


class _Server(uvicorn.Server):
    """uvicorn's server, which leaves signals to `serve`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class WebServer:
    """One server, in one event loop. A subclass provides its site, and what is closed with it."""

    def __init__(self, where: Listening) -> None:
        self.where = where
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def site(self, loop: asyncio.AbstractEventLoop) -> ASGIApp:
        """The application, behind its rules; called once, in the loop."""
        raise NotImplementedError

    def ending(self) -> None:
        """The server ends: called in the loop before it waits for open connections."""

    def ended(self) -> None:
        """All connections are closed; called in a thread."""

    def serve(self, ready: Callable[[], None] = lambda: None) -> None:
        """Answer requests until SIGINT, SIGTERM or `stop`. ready: called once the server answers."""
        asyncio.run(self._serve(ready))

    def stop(self) -> None:
        """End it, from any thread."""
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)

    async def _serve(self, ready: Callable[[], None]) -> None:
        loop = self._loop = asyncio.get_running_loop()
        stop = self._stop = asyncio.Event()
        with contextlib.suppress(ValueError, RuntimeError):  # in a thread that is not the main one
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                loop.add_signal_handler(number, stop.set)
        tls = self.where.tls
        config = uvicorn.Config(
            self.site(loop), log_level="warning", access_log=False, lifespan="off", server_header=False,
            timeout_graceful_shutdown=_ENDING_S, ws="none", proxy_headers=False, http=_Bounded,
            ssl_certfile=None if tls is None else tls.certificate, ssl_keyfile=None if tls is None else tls.key,
        )  # fmt: skip
        server = _Server(config)
        running = asyncio.create_task(server.serve(sockets=[self.where.socket]))
        try:
            while not server.started and not running.done():
                await asyncio.sleep(0.01)
            ready()
            stopped = asyncio.create_task(stop.wait())
            await asyncio.wait({running, stopped}, return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
        finally:
            self.ending()
            # uvicorn logs a traceback for each request that it cancels now, as a scrape of a large fabric.
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
            server.should_exit = True
            await running
            await asyncio.to_thread(self.ended)
