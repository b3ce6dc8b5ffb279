"""The dashboard as a server: its socket, its token, its addresses, its life from start to Ctrl-C.

In:  address, port, token. Out: nothing; `serve` returns after SIGINT, SIGTERM or `stop`. InputError for an address or a
port that cannot be used.
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
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from heddle.base.plugins import folder
from heddle.base.problems import HeddleError, InputError, Problem, trouble
from heddle.base.version import VERSION
from heddle.lab.faults.orders import all_rows
from heddle.lab.faults.registry import KEYS
from heddle.views.fabricsvg import style
from heddle_plugins.dashboard.access import HEADERS, PageAccess
from heddle_plugins.dashboard.labdesk import MOST_STREAMS, LabDesk, port_answer, problems_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from heddle_plugins.dashboard.labwatch import OpenedLab

LOOPBACK: Final = "127.0.0.1"
_ENDING_S: Final = 3  # for connections that are open when the server ends
_REQUEST_S: Final = 10.0  # for a whole request, from the connection or the last answer on
_CONNECTIONS: Final = 200  # at once: their descriptors must fit beside those of readers and runs
_PAGE: Final = "index.html"
_COLOURS: Final = "fabric.css"  # of drawings of fabrics, as in reports
ASSETS: Final[Mapping[str, str]] = {
    _PAGE: "text/html; charset=utf-8",
    "dashboard.css": "text/css; charset=utf-8",
    "dashboard.js": "text/javascript; charset=utf-8",
    "drawing.js": "text/javascript; charset=utf-8",
    "panels.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_MOST_BYTES: Final = 4096  # of a request's body
_Handler = Callable[["Request"], Awaitable[Response]]


def _site(desk: LabDesk, access: PageAccess) -> ASGIApp:
    """The application, behind its rules. The page and its files show no lab, so they need no token.

    An error of Heddle's is answered as JSON with the sentences that a terminal would show: 400, 404, 409 or 503.
    """
    routes = [
        Route("/", _asset),
        Route("/assets/{name}", _asset),
        Route("/api/login", _login(access), methods=["POST"]),
        Route("/api/labs", _answered(_labs), methods=["GET"]),
        Route("/api/labs/{lab}/plan", _answered(_plan), methods=["GET"]),
        Route("/api/labs/{lab}/events", _answered(_events), methods=["GET"]),
        Route("/api/labs/{lab}/ports/{port}", _answered(_port), methods=["GET"]),
        Route("/api/labs/{lab}/qps", _answered(_qps), methods=["GET"]),
        Route("/api/labs/{lab}/run", _answered(_run), methods=["POST"]),
        Route("/api/labs/{lab}/link", _answered(_link), methods=["POST"]),
        Route("/api/labs/{lab}/faults", _answered(_faults), methods=["GET"]),
        Route("/api/labs/{lab}/fault", _answered(_fault), methods=["POST"]),
        Route("/api/labs/{lab}/clear", _answered(_clear), methods=["POST"]),
        Route("/api/labs/{lab}/stop", _answered(_stop), methods=["POST"]),
        Route("/metrics", _metrics, methods=["GET"]),
    ]
    app = Starlette(routes=routes)
    app.state.desk = desk
    return _Guard(app, access)


class _Guard:
    """Checks every request before the site gets it, and puts the security headers on every answer."""

    def __init__(self, app: ASGIApp, access: PageAccess) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        path = scope["path"]
        headers = {name.lower(): value for name, value in Headers(scope=scope).items()}
        free = path in ("/", "/api/login") or path.startswith("/assets/")
        refused = self._access.refusal(scope["method"], path, headers, open_to_all=free)
        if refused is None:
            return await self._app(scope, receive, guarded)
        answer = JSONResponse({"error": refused.why, "problems": []}, refused.status)
        if refused.status == 401:
            answer.headers["www-authenticate"] = "Bearer"
        return await answer(scope, receive, guarded)


def _answered(handler: _Handler) -> _Handler:
    async def answered(request: Request) -> Response:
        try:
            return await handler(request)
        except HeddleError as error:
            status = 400 if isinstance(error, InputError) else 503
            return JSONResponse(problems_of(error), status)

    return answered


async def _asset(request: Request) -> Response:
    name = request.path_params.get("name", _PAGE)
    if name == _COLOURS:
        return Response(style(':root[data-theme="dark"]'), media_type="text/css; charset=utf-8")
    if name not in ASSETS:
        return JSONResponse({"error": f"there is no file {name}", "problems": []}, 404)
    return Response((folder("dashboard") / "templates" / name).read_bytes(), media_type=ASSETS[name])


def _login(access: PageAccess) -> _Handler:
    async def login(request: Request) -> Response:
        try:
            token = (await _body(request)).get("token")
        except InputError as error:
            return JSONResponse(problems_of(error), 400)
        if not isinstance(token, str) or not access.matches(token):
            return JSONResponse({"error": "this is not the token", "problems": []}, 401)
        cookie = f"{access.cookie}={access.session()}; HttpOnly; SameSite=Strict; Path=/"
        return JSONResponse({"ok": True}, headers={"set-cookie": cookie})

    return login


async def _body(request: Request) -> dict[str, Any]:
    """The JSON object of a request; InputError for anything else."""
    data = b""
    async for part in request.stream():
        data += part
        if len(data) > _MOST_BYTES:
            raise InputError(Problem("", "the request", f"has more than {_MOST_BYTES} bytes"))
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InputError(Problem("", "the request", "is not a JSON object"))
    return found


def _desk(request: Request) -> LabDesk:
    desk: LabDesk = request.app.state.desk
    return desk


async def _labs(request: Request) -> Response:
    return JSONResponse({"labs": _desk(request).labs(), "heddle": VERSION})


async def _opened(request: Request) -> OpenedLab:
    """The lab of an address, while its reader has it open; InputError when it has not."""
    lab = request.path_params["lab"]
    opened = _desk(request).viewers(lab).watch.opened
    if opened is None:
        raise InputError(Problem("", f"lab {lab}", "is not read now", "open its page first"))
    return opened


async def _plan(request: Request) -> Response:
    opened = await _opened(request)
    return JSONResponse(await asyncio.to_thread(opened.plan_json))


async def _events(request: Request) -> Response:
    desk = _desk(request)
    viewers = desk.viewers(request.path_params["lab"])
    if desk.streams >= MOST_STREAMS:
        return JSONResponse({"error": f"{MOST_STREAMS} pages are open: close one", "problems": []}, 503)
    return StreamingResponse(viewers.stream(), media_type="text/event-stream")


async def _port(request: Request) -> Response:
    return JSONResponse(port_answer(await _opened(request), request.path_params["port"]))


async def _qps(request: Request) -> Response:
    opened = await _opened(request)
    return JSONResponse(await asyncio.to_thread(_desk(request).paths.of, opened.lab, opened.mark))


async def _run(request: Request) -> Response:
    asked = await _body(request)
    return JSONResponse(_desk(request).actions(request.path_params["lab"]).run(asked).to_json(), 202)


async def _link(request: Request) -> Response:
    asked = await _body(request)
    actions = _desk(request).actions(request.path_params["lab"])
    return JSONResponse(actions.link(asked.get("port"), asked.get("state")).to_json(), 202)


async def _faults(request: Request) -> Response:
    opened = await _opened(request)
    return JSONResponse({"faults": await asyncio.to_thread(all_rows, opened.lab), "kinds": KEYS})


async def _fault(request: Request) -> Response:
    asked = await _body(request)
    return JSONResponse(_desk(request).actions(request.path_params["lab"]).fault(asked).to_json(), 202)


async def _clear(request: Request) -> Response:
    asked = await _body(request)
    return JSONResponse(_desk(request).actions(request.path_params["lab"]).clear(asked.get("where")).to_json(), 202)


async def _stop(request: Request) -> Response:
    return JSONResponse({"stopped": _desk(request).actions(request.path_params["lab"]).stop()})


async def _metrics(request: Request) -> Response:
    text, kind = await asyncio.to_thread(_desk(request).scrape, request.headers.get("accept", ""))
    return Response(text, headers={"content-type": kind})


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
            _site(desk, access), log_level="warning", access_log=False, lifespan="off", server_header=False,
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
