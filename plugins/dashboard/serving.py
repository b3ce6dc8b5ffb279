"""The dashboard as a site: its addresses, behind the rules of heddle/host/webserver.py."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from heddle.base.plugins import folder
from heddle.base.problems import HeddleError, InputError, Problem
from heddle.base.version import VERSION
from heddle.host.webaccess import PageAccess
from heddle.host.webserver import Guard, WebServer, object_of
from heddle.lab.faults.orders import all_rows
from heddle.lab.faults.registry import KEYS
from heddle.views.fabricsvg import style
from heddle_plugins.dashboard.labdesk import MOST_STREAMS, LabDesk, port_answer, problems_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp

    from heddle_plugins.dashboard.labwatch import OpenedLab

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
    return Guard(
        app,
        access,
        lambda refused: JSONResponse({"error": refused.why, "problems": []}, refused.status),
        lambda path: path in ("/", "/api/login") or path.startswith("/assets/"),
    )


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
    return await object_of(request, _MOST_BYTES)


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


class Serving(WebServer):
    """The dashboard's server."""

    def site(self, loop: asyncio.AbstractEventLoop) -> ASGIApp:
        self._desk = LabDesk(loop)
        return _site(self._desk, PageAccess(self.where.bind, self.where.port, self.where.token))

    def ending(self) -> None:
        self._desk.end_streams()

    def ended(self) -> None:
        self._desk.close()
