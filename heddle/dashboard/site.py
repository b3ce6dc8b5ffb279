"""The addresses of the dashboard: the page and its files, what it asks, its buttons, /metrics.

In:  a LabDesk, the rules of PageAccess. Out: an ASGI application (starlette).

    GET  /, /assets/FILE                    the page; shows no lab, so it needs no token
    POST /api/login                         {"token": "..."} -> the cookie
    GET  /api/labs                          the labs
    GET  /api/labs/LAB/plan                 the drawing
    GET  /api/labs/LAB/events               server-sent events: hello, state, update, news, action
    GET  /api/labs/LAB/ports/NODE:PORT      queues and history of a port
    GET  /api/labs/LAB/qps                  the QPs of the last run and their paths
    GET  /api/labs/LAB/faults               the faults in force, with the effect that is seen now
    POST /api/labs/LAB/run, link, fault, clear, stop      the buttons
    GET  /metrics                           for Prometheus

An error of Heddle's is answered as JSON with the sentences that a terminal would show: 400, 404, 409 or 503.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from heddle.base import resources
from heddle.base.problems import HeddleError, InputError, Problem
from heddle.base.version import VERSION
from heddle.dashboard.access import HEADERS, PageAccess
from heddle.dashboard.labdesk import MOST_STREAMS, LabDesk, port_answer, problems_of
from heddle.lab.faults.orders import all_rows
from heddle.lab.faults.registry import KEYS

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from heddle.dashboard.labwatch import OpenedLab

PAGE: Final = "index.html"
ASSETS: Final[Mapping[str, str]] = {
    PAGE: "text/html; charset=utf-8",
    "dashboard.css": "text/css; charset=utf-8",
    "dashboard.js": "text/javascript; charset=utf-8",
    "drawing.js": "text/javascript; charset=utf-8",
    "panels.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_MOST_BYTES: Final = 4096  # of a request's body
Handler = Callable[["Request"], Awaitable[Response]]


def asset(name: str) -> bytes:
    """One of the page's files."""
    return (resources.HERE.content(resources.TEMPLATES) / "dashboard" / name).read_bytes()


def site(desk: LabDesk, access: PageAccess) -> ASGIApp:
    """The application, behind its rules."""
    routes = [
        Route("/", _page),
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
    return Guard(app, access)


class Guard:
    """Checks every request before the site gets it, and puts the security headers on every answer."""

    def __init__(self, app: ASGIApp, access: PageAccess) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
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


def _answered(handler: Handler) -> Handler:
    """A handler whose HeddleErrors become answers."""

    async def answered(request: Request) -> Response:
        try:
            return await handler(request)
        except HeddleError as error:
            status = 400 if isinstance(error, InputError) else 503
            return JSONResponse(problems_of(error), status)

    return answered


async def _page(request: Request) -> Response:
    return Response(asset(PAGE), media_type=ASSETS[PAGE])


async def _asset(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in ASSETS:
        return JSONResponse({"error": f"there is no file {name}", "problems": []}, 404)
    return Response(asset(name), media_type=ASSETS[name])


def _login(access: PageAccess) -> Handler:
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
