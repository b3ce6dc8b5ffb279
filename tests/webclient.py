"""A client of the dashboard for tests: what a browser and Prometheus ask, by http.client."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from heddle.host.webserver import LOOPBACK, WebServer, listen
from heddle_plugins.dashboard.serving import Serving

TOKEN = "a-token-of-the-tests"
Answer = tuple[int, dict[str, str], Any]  # status, headers, JSON or text


class WebClient:
    """One server. port: of loopback. token: sent with each request; None: not sent."""

    def __init__(self, port: int, token: str | None = TOKEN) -> None:
        self.port, self.token = port, token

    @property
    def page(self) -> str:
        """The page's address for a browser."""
        return f"http://{LOOPBACK}:{self.port}/#token={self.token}"

    def ask(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        """One request. A body is sent as JSON unless the headers have another type."""
        link = http.client.HTTPConnection(LOOPBACK, self.port, timeout=30)
        sent = {"Authorization": f"Bearer {self.token}"} if self.token is not None else {}
        sent |= {"Content-Type": "application/json"} if body is not None else {}
        try:
            link.request(method, path, json.dumps(body) if body is not None else None, {**sent, **(headers or {})})
            answer = link.getresponse()
            text = answer.read().decode()
        finally:
            link.close()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, found, json.loads(text) if "json" in found.get("content-type", "") else text

    def get(self, path: str) -> Any:
        """The body of an answer that must be 200."""
        status, _, found = self.ask("GET", path)
        assert status == 200, found
        return found

    def post(self, path: str, body: Any) -> Answer:
        """A button, as the page presses it."""
        return self.ask(
            "POST", path, body, {"Origin": f"http://{LOOPBACK}:{self.port}", "Sec-Fetch-Site": "same-origin"}
        )


class EventStream:
    """The events of a lab, collected by a thread until `close`."""

    def __init__(self, client: WebClient, lab: str) -> None:
        self._link = http.client.HTTPConnection(LOOPBACK, client.port, timeout=60)
        self._link.request("GET", f"/api/labs/{lab}/events", headers={"Authorization": f"Bearer {client.token}"})
        self._answer = self._link.getresponse()
        assert self._answer.status == 200, self._answer.read()
        self.events: list[tuple[str, Any]] = []
        self._new = threading.Condition()
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        kind = ""
        try:
            for line in self._answer:
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if name == "event":
                    kind = value
                elif name == "data":
                    with self._new:
                        self.events.append((kind, json.loads(value)))
                        self._new.notify_all()
        except (OSError, ValueError, AttributeError, http.client.HTTPException):
            pass  # closed
        finally:
            self.ended.set()

    def wait_for(self, kind: str, wanted: Callable[[Any], bool] = lambda _: True, seconds: float = 30) -> Any:
        """The first event of a kind that is wanted, from the beginning on."""
        end, at = time.monotonic() + seconds, 0
        with self._new:
            while True:
                for found, data in self.events[at:]:
                    if found == kind and wanted(data):
                        return data
                at = len(self.events)
                left = end - time.monotonic()
                assert left > 0, f"no {kind} in {seconds} s; the last events: {self.events[-3:]}"
                self._new.wait(left)

    def forget(self) -> None:
        """Look only at events from now on."""
        with self._new:
            self.events.clear()

    def close(self) -> None:
        """Go, as a viewer does who closes the page."""
        sock = self._link.sock
        if sock is not None:
            sock.shutdown(2)
        self._answer.close()
        self._link.close()
        self._thread.join(10)


@contextmanager
def running(server: WebServer) -> Iterator[int]:
    """A server in a thread, until the block ends; its port."""
    ready = threading.Event()
    failed: list[BaseException] = []

    def serve() -> None:
        try:
            server.serve(ready.set)
        except BaseException as error:
            failed.append(error)
            raise

    thread = threading.Thread(target=serve, name="server")
    thread.start()
    try:
        assert ready.wait(20)
        yield server.where.port
    finally:
        server.stop()
        thread.join(60)
        assert not thread.is_alive(), "the server does not end"
        assert not failed


@contextmanager
def dashboard() -> Iterator[WebClient]:
    """A running dashboard of the labs in this state directory, on a free port of loopback."""
    with running(Serving(listen(LOOPBACK, 0, TOKEN))) as port:
        yield WebClient(port)
