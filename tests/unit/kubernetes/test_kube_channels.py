"""The channels of exec over a WebSocket: bytes come unchanged, in both directions, whatever the sizes of frames."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from heddle.base.problems import MachineError
from heddle.base.untrusted import LINE_BYTES
from heddle_plugins.kubernetes import kubeprobe
from heddle_plugins.kubernetes.kubecluster import KubeCluster
from heddle_plugins.kubernetes.manifests import pod_name
from heddle_plugins.kubernetes.podexec import ERROR, PROTOCOL, STDIN, STDOUT, ChannelSocket
from heddle_plugins.kubernetes.target import KubeTarget
from tests.machine import until

SIZES = (0, 1, 124, 125, 126, 65533, 65534, 65535, 65536, 300_000)


@pytest.fixture
def ends() -> tuple[ChannelSocket, socket.socket]:
    ours, theirs = socket.socketpair()
    theirs.settimeout(5)
    return ChannelSocket(ours), theirs


def received(server: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        data += server.recv(count - len(data))
    return data


def frame_of_client(channels: ChannelSocket, server: socket.socket) -> tuple[int, bytes]:
    """The next frame, as a server reads it by RFC 6455: opcode, unmasked payload."""
    data = bytearray()

    def need(count: int) -> bytes:
        while len(data) < count:
            channels.flush()
            data.extend(server.recv(1 << 16))
        taken = bytes(data[:count])
        del data[:count]
        return taken

    first, second = need(2)
    assert second & 0x80, "a client masks"
    size = second & 0x7F
    if size == 126:
        (size,) = struct.unpack(">H", need(2))
    elif size == 127:
        (size,) = struct.unpack(">Q", need(8))
    key, masked = need(4), need(size)
    assert not data, "one frame at a time"
    return first & 0x0F, bytes(byte ^ key[index % 4] for index, byte in enumerate(masked))


def frame_of_server(payload: bytes, code: int = 0x2, *, final: bool = True) -> bytes:
    size = len(payload)
    head = struct.pack("BB", code | (0x80 if final else 0), size if size < 126 else 126 if size < 1 << 16 else 127)
    more = b"" if size < 126 else struct.pack(">H", size) if size < 1 << 16 else struct.pack(">Q", size)
    return head + more + payload


@pytest.mark.parametrize("size", SIZES)
def test_what_is_sent_is_read_unchanged(ends: tuple[ChannelSocket, socket.socket], size: int) -> None:
    channels, server = ends
    data = os.urandom(size)
    channels.send(STDIN, data)
    assert frame_of_client(channels, server) == (0x2, bytes((STDIN,)) + data)
    assert channels.unsent == 0


def test_the_end_of_standard_input_has_its_own_message(ends: tuple[ChannelSocket, socket.socket]) -> None:
    channels, server = ends
    channels.close_channel(STDIN)
    assert frame_of_client(channels, server) == (0x2, bytes((255, STDIN)))


@pytest.mark.parametrize("piece", [1, 7, 4096, 1 << 20])
def test_frames_are_read_in_any_pieces(ends: tuple[ChannelSocket, socket.socket], piece: int) -> None:
    channels, server = ends
    texts = [os.urandom(size) for size in SIZES[:7]]
    stream = b"".join(frame_of_server(bytes((STDOUT,)) + text) for text in texts)
    stream += frame_of_server(b"\x01a", final=False) + frame_of_server(b"b", 0x0)  # one message in two frames
    stream += frame_of_server(bytes((ERROR,)) + b"{}") + frame_of_server(b"\x03\xe8", 0x8)
    found: list[tuple[int, bytes]] = []
    server.setblocking(False)
    while stream:
        with suppress(BlockingIOError):
            stream = stream[server.send(stream[:piece]) :]
        found += channels.receive()
    found += channels.receive()
    assert b"".join(data for channel, data in found if channel == STDOUT) == b"".join(texts) + b"ab"
    assert [data for channel, data in found if channel == ERROR] == [b"{}"]
    assert channels.closed


def test_a_ping_is_answered_with_its_own_text(ends: tuple[ChannelSocket, socket.socket]) -> None:
    channels, server = ends
    server.sendall(frame_of_server(b"are you there", 0x9))
    assert list(channels.receive()) == []
    assert frame_of_client(channels, server) == (0xA, b"are you there")


def test_a_connection_that_ends_without_a_close_is_closed(ends: tuple[ChannelSocket, socket.socket]) -> None:
    channels, server = ends
    server.close()
    assert list(channels.receive()) == []
    assert channels.closed


def test_all_that_comes_before_the_end_is_read_and_waiting_has_a_limit(
    ends: tuple[ChannelSocket, socket.socket],
) -> None:
    channels, server = ends
    server.sendall(frame_of_server(bytes((STDOUT,)) + b"10.244.1.5") + frame_of_server(bytes((ERROR,)) + b"{}"))
    with pytest.raises(TimeoutError):
        list(channels.until_closed(0.1))
    server.sendall(frame_of_server(bytes((STDOUT,)) + b"more"))
    server.close()
    assert list(channels.until_closed(5)) == [(STDOUT, b"more")]


def flooding(server: socket.socket, data: bytes, seconds: float = 60.0) -> None:
    def flood() -> None:
        end = time.monotonic() + seconds
        with suppress(OSError):
            while time.monotonic() < end:
                server.sendall(data)
        server.close()

    threading.Thread(target=flood, daemon=True).start()


def frame(payload: bytes, head: int = 0x82) -> bytes:
    return struct.pack(">BBH", head, 126, len(payload)) + payload


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (frame(b"\x01" + b"x" * 60_000), TimeoutError),
        (frame(b"\x01"), TimeoutError),  # frames without a message
        (frame(b"x" * 60_000, 0x02), ConnectionError),  # one message without an end
        (struct.pack(">BBQ", 0x82, 127, 1 << 62) + bytes(1 << 16), ConnectionError),  # one frame without an end
        (b"\x89\x00" * 20_000, (TimeoutError, ConnectionError)),  # pings, whose answers are not read
    ],
)
def test_a_time_limit_counts_while_data_come(data: bytes, error: Any) -> None:
    ours, theirs = socket.socketpair()
    channels = ChannelSocket(ours)
    flooding(theirs, data)
    began, size = time.monotonic(), 0
    with ours, pytest.raises(error):
        for _, piece in channels.until_closed(1.0):
            size += len(piece)
    assert time.monotonic() - began < 30  # the flood lasts 60 s
    assert len(channels._in) + len(channels._message) + len(channels._out) < 4 * LINE_BYTES
    channels.close()


@contextmanager
def pods(text: bytes, times: int, monkeypatch: pytest.MonkeyPatch, place: Path) -> Iterator[KubeCluster]:
    """A cluster whose pods answer each command with a text, so many times, and do not end it."""
    stop = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            accept = base64.b64encode(hashlib.sha1(key.encode(), usedforsecurity=False).digest()).decode()
            words = f"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n"
            words += f"Sec-WebSocket-Protocol: {PROTOCOL}\r\n\r\n"
            self.wfile.write(b"HTTP/1.1 101 Switching Protocols\r\n" + words.encode())
            with suppress(OSError):
                for _ in range(times):
                    self.wfile.write(frame_of_server(bytes((STDOUT,)) + text))
                stop.wait(30)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    class Server(ThreadingHTTPServer):
        block_on_close = False
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        config = place / "kubeconfig"
        config.write_text(
            "apiVersion: v1\nkind: Config\ncurrent-context: one\n"
            f'clusters: [{{name: c, cluster: {{server: "http://127.0.0.1:{server.server_address[1]}"}}}}]\n'
            "users: [{name: u, user: {token: secret}}]\ncontexts: [{name: one, context: {cluster: c, user: u}}]\n"
        )
        monkeypatch.setenv("KUBECONFIG", str(config))
        monkeypatch.setenv("HEDDLE_STATE_DIR", str(place))
        try:
            yield KubeCluster(KubeTarget("one", "labs"))
        finally:
            stop.set()
            server.shutdown()


@pytest.mark.parametrize(
    ("text", "times", "said"),
    [
        (b"x" * 60_000, 1 << 12, "prints more than 16 MiB"),
        (b"", 0, "has not ended a command within 0.5 s"),
        (b"[]", 1, "has not ended a command within 0.5 s"),
    ],
)
def test_a_probe_pod_that_answers_without_an_end_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: bytes, times: int, said: str
) -> None:
    monkeypatch.setattr(kubeprobe, "_SECONDS", 0.5 if times < 2 else 60.0)
    name = pod_name(kubeprobe.PROBE, "s1")
    with pods(text, times, monkeypatch, tmp_path) as cluster:
        (row,) = kubeprobe.tried(cluster, "s1", ["check"])
        assert (row.name, row.ok, row.detail) == ("trials", False, f"pod {name} {said}")


def test_a_probe_pod_whose_peer_never_answers_or_never_ends_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(kubeprobe, "_READY_S", 0.5)
    monkeypatch.setattr(kubeprobe, "_END_S", 0.5)
    silent, endless = tmp_path / "1", tmp_path / "2"
    silent.mkdir()
    endless.mkdir()
    said = f"pod {pod_name(kubeprobe.PROBE, 's1')} +has not begun to answer"
    with pods(b"", 0, monkeypatch, silent) as cluster, pytest.raises(MachineError, match=said), ExitStack() as stack:
        stack.enter_context(kubeprobe.answering(cluster, "s1", ["answer"]))
    began, answered = time.monotonic(), 0
    with pods(b"x" * 60_000, 1 << 20, monkeypatch, endless) as cluster, kubeprobe.answering(cluster, "s1", ["answer"]):
        answered += 1
    assert answered and time.monotonic() - began < 20
    until(lambda: not [each for each in threading.enumerate() if each.name.startswith("exec ")])


def test_rows_of_a_probe_pod_are_few_and_short() -> None:
    row = {"name": "bpf", "ok": True, "detail": "y" * 5000}
    (check,) = kubeprobe.checks_of(json.dumps([row]).encode(), "s1")
    assert (check.name, check.ok, len(check.detail)) == ("bpf", True, 1000)
    for bad in ([row] * 1000, {"a": 1}, [1], [{"name": "x"}]):
        (check,) = kubeprobe.checks_of(json.dumps(bad).encode(), "s1")
        assert (check.ok, check.detail) == (False, "the pod of shard s1 has sent no checks")
