"""The dashboard as a server: its socket, its token, its life from start to Ctrl-C.

In:  address, port, token. Out: nothing; `serve` returns after SIGINT, SIGTERM or `stop`. InputError for an address or a
port that cannot be used.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from heddle.base.problems import InputError, Problem, trouble
from heddle.dashboard.access import PageAccess
from heddle.dashboard.labdesk import LabDesk
from heddle.dashboard.site import site

LOOPBACK: Final = "127.0.0.1"
_ENDING_S: Final = 3  # for connections that are open when the server ends
_REQUEST_S: Final = 10.0  # for a whole request, from the connection or the last answer on
_CONNECTIONS: Final = 200  # at once: their descriptors must fit beside those of readers and runs


@dataclass(frozen=True)
class Listening:
    """A socket that is bound, and its rules."""

    socket: socket.socket
    bind: str
    port: int
    token: str

    @property
    def url(self) -> str:
        """The page's address."""
        host = f"[{self.bind}]" if ":" in self.bind else self.bind
        if ipaddress.ip_address(self.bind).is_unspecified:
            host = socket.gethostname()
        return f"http://{host}:{self.port}/"


def listen(bind: str, port: int, token: str) -> Listening:
    """Bind the socket. port: 0 for a free one."""
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
    return Listening(made, address, made.getsockname()[1], token)


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
        """A part of a request, or all of it."""
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
        """Capture none."""
        yield


class Serving:
    """One server, in one event loop."""

    def __init__(self, where: Listening) -> None:
        self.where = where
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

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
        desk = LabDesk(loop)
        access = PageAccess(self.where.bind, self.where.port, self.where.token)
        config = uvicorn.Config(
            site(desk, access), log_level="warning", access_log=False, lifespan="off", server_header=False,
            timeout_graceful_shutdown=_ENDING_S, ws="none", proxy_headers=False, http=_Bounded,
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
            desk.end_streams()
            # uvicorn logs a traceback for each request that it cancels now, as a scrape of a large fabric.
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
            server.should_exit = True
            await running
            await asyncio.to_thread(desk.close)
