"""Open Traffic Generator over HTTP: its paths, each a call of the generator, behind the rules of host/webserver.py.

In:  requests of clients as snappi. Out: JSON, or a pcap; errors as OTG's Error: code, kind, and all errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from heddle.base.problems import HeddleError, InputError, MachineError, Problem, trouble
from heddle.base.untrusted import check_values, parsed
from heddle.base.version import VERSION
from heddle.host.webaccess import PageAccess, Refusal
from heddle.host.webserver import Guard, Listening, WebServer, body_of
from heddle_plugins.otg.generator import Generator

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp

MOST_BYTES: Final = 8 << 20  # of a request's body
MOST_VALUES: Final = 1 << 19  # of its JSON
API: Final = "1.62.0"  # of the model, github.com/open-traffic-generator/models
_MISSING: Final = {
    "/config": "update_config", "/config/append": "append_config", "/config/delete": "delete_config",
    "/control/action": "set_control_action", "/monitor/states": "get_states",
}  # fmt: skip
_Handler = Callable[["Request"], Awaitable[Response]]


def _error(status: int, kind: str, *errors: str) -> Response:
    return JSONResponse({"code": status, "kind": kind, "errors": list(errors)}, status)


def _refused(refused: Refusal) -> Response:
    return _error(refused.status, "validation", refused.why)


async def _unknown(request: Request, error: Exception) -> Response:
    """No such path, or no such method of it."""
    assert isinstance(error, HTTPException)  # noqa: S101  (registered for these)
    return _error(error.status_code, "validation", str(error.detail))


def _answered(handler: _Handler) -> _Handler:
    async def answered(request: Request) -> Response:
        try:
            try:
                return await handler(request)
            except OSError as error:  # a namespace or a socket, as when the lab goes down just now
                raise trouble(error) from None
        except HeddleError as error:
            ours = isinstance(error, InputError)
            texts = [str(each) for each in error.problems]
            return _error(400 if ours else 500, "validation" if ours else "internal", *texts)

    return answered


async def _document(request: Request) -> Any:
    data = await body_of(request, MOST_BYTES)
    try:
        check_values(data, MOST_VALUES)
        return parsed(data)
    except ValueError as error:
        raise InputError(Problem("", "the request", f"is not JSON that this server reads: {error}")) from None


def site(generator: Generator, access: PageAccess) -> ASGIApp:
    """The application. Each call runs in a thread: it may wait for packets."""

    def call(work: Callable[[Any], dict[str, Any]]) -> _Handler:
        async def handler(request: Request) -> Response:
            document = await _document(request)
            return JSONResponse(await asyncio.to_thread(work, document))

        return _answered(handler)

    async def config(request: Request) -> Response:
        return JSONResponse(await asyncio.to_thread(generator.configuration))

    async def capture(request: Request) -> Response:
        document = await _document(request)
        found = await asyncio.to_thread(generator.captured, document)
        return Response(found, media_type="application/octet-stream")

    async def version(request: Request) -> Response:
        return JSONResponse({"api_spec_version": API, "sdk_version": "", "app_version": f"heddle {VERSION}"})

    async def missing(request: Request) -> Response:
        why = f"{_MISSING[request.url.path]} is not supported: write the whole configuration with set_config"
        return _error(501, "validation", why)

    routes = [
        Route("/config", call(generator.configure), methods=["POST"]),
        Route("/config", _answered(config), methods=["GET"]),
        Route("/control/state", call(generator.control), methods=["POST"]),
        Route("/monitor/metrics", call(generator.metrics), methods=["POST"]),
        Route("/monitor/capture", _answered(capture), methods=["POST"]),
        Route("/capabilities/version", version, methods=["GET"]),
        *(Route(path, missing, methods=["PATCH", "POST"]) for path in _MISSING),
    ]
    unknown = {404: _unknown, 405: _unknown}
    return Guard(Starlette(routes=routes, exception_handlers=unknown), access, _refused)


class OtgServer(WebServer):
    """The server of one lab. idle_s: without a request, after which flows are stopped."""

    def __init__(self, where: Listening, lab: str, idle_s: float) -> None:
        super().__init__(where)
        self._generator = Generator(lab, idle_s)

    def site(self, loop: asyncio.AbstractEventLoop) -> ASGIApp:
        access = PageAccess(self.where.bind, self.where.port, self.where.token, "traffic generator")
        return site(self._generator, access)

    def ended(self) -> None:
        try:
            self._generator.close()
        except MachineError:  # the lab is gone, and its flows with it
            return
