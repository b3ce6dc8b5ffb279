"""Watches of the API: what a server may do to one, and the objects are still those of the cluster."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from heddle.base.problems import MachineError
from heddle.runtimes.clusterkind import UnreachableError
from heddle_plugins.kubernetes import watch
from heddle_plugins.kubernetes.api import ForbiddenError, KubeApi
from heddle_plugins.kubernetes.target import KubeTarget
from heddle_plugins.kubernetes.watch import Watch
from tests.machine import until

Answer = Callable[["Handler"], None]


def pod(name: str, version: int, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": str(version)}, **more}


def line(kind: str, found: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": found}).encode() + b"\n"


GONE = {"kind": "Status", "code": 410, "message": "too old resource version"}


class Handler(BaseHTTPRequestHandler):
    """Answers a list with all pods, and each watch with the next answer; what was asked is in `asked`."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        if "watch" not in query:
            self.server.asked.append("list")
            self.status(self.server.code, {"items": self.server.pods, "metadata": {"resourceVersion": "10"}})
            return
        self.server.asked.append(query["resourceVersion"][0])
        answers = self.server.answers
        (answers.pop(0) if answers else hang)(self)

    def status(self, code: int, found: object) -> None:
        data = json.dumps(found).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def chunks(self, *pieces: bytes, end: bool = True) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for each in pieces:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(each), each))
        if end:
            self.wfile.write(b"0\r\n\r\n")
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Print nothing."""


class Server(ThreadingHTTPServer):
    block_on_close = False
    daemon_threads = True
    code = 200

    def __init__(self, pods: Sequence[dict[str, Any]], answers: Sequence[Answer]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.pods, self.answers, self.asked = list(pods), list(answers), list[str]()
        self.stop = threading.Event()


def hang(handler: Handler) -> None:
    handler.chunks(end=False)
    handler.server.stop.wait(30)


def sends(*pieces: bytes, end: bool = True) -> Answer:
    return lambda handler: handler.chunks(*pieces, end=end)


@contextmanager
def following(
    place: Path, patch: pytest.MonkeyPatch, *answers: Answer, code: int = 200, optional: bool = False
) -> Iterator[tuple[Watch, Server]]:
    """A watch of pods `a` and `b`. After the answers a connection stays open, and nothing comes."""
    patch.setattr(watch, "_AGAIN_S", 0.02)
    with Server([pod("a", 8), pod("b", 9)], answers) as server:
        server.code = code
        threading.Thread(target=server.serve_forever, daemon=True).start()
        config = place / "kubeconfig"
        config.write_text(
            "apiVersion: v1\nkind: Config\ncurrent-context: one\n"
            f'clusters: [{{name: c, cluster: {{server: "http://127.0.0.1:{server.server_address[1]}"}}}}]\n'
            "users: [{name: u, user: {token: secret}}]\ncontexts: [{name: one, context: {cluster: c, user: u}}]\n"
        )
        patch.setenv("KUBECONFIG", str(config))
        try:
            with Watch(KubeApi(KubeTarget("one", "labs")), "Pod", "x=y", optional=optional) as found:
                yield found, server
        finally:
            server.stop.set()
            server.shutdown()


def names(found: Watch) -> list[str]:
    return sorted(each["metadata"]["name"] for each in found.now())


def test_pods_come_change_and_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = line("ADDED", pod("c", 11)), line("MODIFIED", pod("a", 12, status="Running")), line("DELETED", pod("b", 13))
    with following(tmp_path, monkeypatch, sends(lines[0] + lines[1][:20], lines[1][20:] + lines[2])) as (found, server):
        until(lambda: names(found) == ["a", "c"])
        assert {each["metadata"]["name"]: each.get("status") for each in found.now()} == {"a": "Running", "c": None}
        until(lambda: len(server.asked) == 3)
        assert server.asked == ["list", "10", "13"]


@pytest.mark.parametrize("end", [True, False], ids=["ended", "cut off"])
def test_a_connection_that_ends_goes_on_at_the_last_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: bool
) -> None:
    first = sends(
        line("ADDED", pod("c", 11)), line("BOOKMARK", pod("", 20)), *([] if end else [b'{"type": "DEL']), end=end
    )
    with following(tmp_path, monkeypatch, first, sends(line("DELETED", pod("a", 21)))) as (found, server):
        until(lambda: names(found) == ["b", "c"])
        until(lambda: len(server.asked) == 4)
        assert server.asked == ["list", "10", "20", "21"]


@pytest.mark.parametrize("gone", [sends(line("ERROR", GONE)), lambda handler: handler.status(410, GONE)])
def test_a_version_that_is_too_old_is_listed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: Answer
) -> None:
    with following(tmp_path, monkeypatch, gone) as (found, server):
        assert names(found) == ["a", "b"]
        server.pods.pop()
        until(lambda: names(found) == ["a"] and len(server.asked) >= 4)
        assert server.asked[:4] == ["list", "10", "list", "10"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (sends(b"no JSON\n"), "sends Pod objects that cannot be read"),
        (sends(b'{"type": "ADDED", "object": {}}\n'), "sends Pod objects that cannot be read"),
        (sends(line("ERROR", {"code": 500, "message": "etcd is gone"})), "ends a watch: etcd is gone"),
        (lambda handler: handler.status(503, {"message": "not now"}), "was refused (503): not now"),
    ],
)
def test_an_error_is_raised_where_pods_are_read_until_they_are_listed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Answer, said: str
) -> None:
    seen: list[MachineError] = []
    with following(tmp_path, monkeypatch, *[answer] * 10) as (found, server):

        def failed() -> bool:
            try:
                found.now()
            except MachineError as error:
                seen.append(error)
            return bool(seen)

        until(failed, every=0.001)
        assert said in str(seen[0])
        server.answers.clear()
        until(lambda: server.asked[-1] == "10" and names_or_none(found) == ["a", "b"])


def names_or_none(found: Watch) -> list[str] | None:
    try:
        return names(found)
    except MachineError:
        return None


def test_a_user_who_may_not_see_objects_has_none_where_they_are_optional(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with following(tmp_path, monkeypatch, code=403, optional=True) as (found, _):
        assert found.now() == []
    with following(tmp_path, monkeypatch, code=403) as (found, _), pytest.raises(ForbiddenError):
        found.now()


def test_a_server_that_is_gone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with following(tmp_path, monkeypatch, *[sends()] * 10_000) as (found, server):  # each connection ends at once
        assert names(found) == ["a", "b"]
        server.shutdown()
        server.socket.close()
        with pytest.raises(UnreachableError, match="refuses connections"):
            until(lambda: names(found) != ["a", "b"])
