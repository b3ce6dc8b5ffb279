"""Who may use the dashboard: its names, other sites, the token, and the headers of every answer."""

from __future__ import annotations

import socket
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from heddle.base.problems import InputError
from heddle.host import webserver
from heddle.host.webaccess import HEADERS, PageAccess, make_token, read_token
from heddle.host.webserver import LOOPBACK, listen
from heddle_plugins.dashboard.labdesk import MOST_STREAMS, LabDesk
from heddle_plugins.dashboard.serving import ASSETS
from tests.answers import Answers
from tests.webclient import TOKEN, WebClient, dashboard


@pytest.fixture(scope="module")
def page() -> Iterator[WebClient]:
    """A dashboard without labs, which needs no root."""
    with dashboard() as found:
        yield found


@pytest.fixture
def locked(page: WebClient) -> WebClient:
    """A client without the token."""
    return WebClient(page.port, None)


def test_every_answer_has_the_security_headers_and_no_script_in_its_text(page: WebClient) -> None:
    asked = [("GET", "/"), *(("GET", f"/assets/{name}") for name in ASSETS), ("GET", "/api/labs"), ("GET", "/metrics"),
             ("GET", "/nothing"), ("GET", "/assets/..%2f..%2fREADME.md"), ("POST", "/api/labs/zone/run")]  # fmt: skip
    for method, path in asked:
        _, headers, _ = page.ask(method, path)
        assert {name: headers.get(name) for name in HEADERS} == HEADERS, path
    policy = HEADERS["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    # The page has no script and no style in its text.
    text = page.get("/")
    assert "<style" not in text
    assert "style=" not in text
    assert " on" + "click=" not in text
    assert text.count("<script") == text.count('<script type="module" src="/assets/dashboard.js"></script>') == 1
    for name in ASSETS:
        found = page.get(f"/assets/{name}")
        assert "://" not in str(found).replace("http://www.w3.org/", ""), f"{name} names another machine"


def test_a_file_or_a_body_that_is_not_the_pages_is_refused(page: WebClient) -> None:
    for name in ("..%2f..%2fREADME.md", "%2e%2e/index.html", "grafana", "index.html.bak"):
        assert page.ask("GET", f"/assets/{name}")[0] == 404
    # A request that is no object or too long is refused.
    bodies: list[object] = [[], "x", 3, None, {"x": "y" * 5000}]
    for body in bodies:
        status, _, found = page.post("/api/login", body)
        assert (status, bool(found.get("error"))) in {(400, True), (403, True)}, body


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example:{port}", "", "192.0.2.7"])
def test_another_name_for_this_machine_is_refused(page: WebClient, host: str) -> None:
    for path in ("/", "/api/labs", "/metrics", "/assets/dashboard.js"):
        status, _, found = page.ask("GET", path, headers={"Host": host.format(port=page.port)})
        assert status in (400, 421), path  # 400: the server itself, for no Host at all
        assert "labs" not in str(found)


def test_names_of_loopback_are_answered_also_behind_a_forwarded_port(page: WebClient) -> None:
    for host in ("localhost:{port}", "127.0.0.1", "[::1]:{port}", "LOCALHOST:{port}", "localhost:9000"):
        assert page.ask("GET", "/api/labs", headers={"Host": host.format(port=page.port)})[0] == 200, host


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},  # another server of this machine
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-origin"},  # a browser sends Origin with a POST
        {"Content-Type": "text/plain"},  # as a form of another site can send it
        {"Content-Type": "application/x-www-form-urlencoded"},
    ],
)
def test_a_button_pressed_by_another_site_is_refused(page: WebClient, headers: dict[str, str]) -> None:
    for path in ("/api/labs/zone/link", "/api/labs/zone/run", "/api/labs/zone/stop", "/api/login"):
        status, _, found = page.ask("POST", path, {"port": "rtsw1:eth1", "state": "down"}, headers)
        assert status == 403, (path, found)


def test_a_button_of_the_page_and_a_program_get_through(page: WebClient) -> None:
    status, _, found = page.post("/api/labs/nolab/link", {"port": "rtsw1:eth1", "state": "down"})
    assert (status, found["problems"][0]["why"]) == (400, "is not running")
    assert page.ask("POST", "/api/labs/nolab/link", {"port": "rtsw1:eth1", "state": "down"})[0] == 400


def test_reading_from_another_site_is_refused_but_a_link_to_the_page_works(page: WebClient) -> None:
    foreign = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
    for path in ("/api/labs", "/metrics", "/api/labs/zone/events"):
        assert page.ask("GET", path, headers=foreign)[0] == 403
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert page.ask("GET", "/?lab=zone", headers=link)[0] == 200
    assert page.ask("GET", "/api/labs", headers=link)[0] == 403


def test_the_token_is_needed_for_all_that_shows_or_changes_a_lab(locked: WebClient) -> None:
    assert locked.ask("GET", "/")[0] == 200
    for path in ("/api/labs", "/metrics", "/api/labs/zone/events", "/api/labs/zone/plan", "/api/labs/zone/qps"):
        status, headers, _ = locked.ask("GET", path)
        assert (status, headers.get("www-authenticate")) == (401, "Bearer"), path
    for path in ("run", "link", "stop"):
        assert locked.post(f"/api/labs/zone/{path}", {})[0] == 401
    for wrong in ("", "x", TOKEN[:-1], TOKEN + "x", "ä" * 20, "\ud800"):
        assert locked.post("/api/login", {"token": wrong})[0] == 401
        assert (
            locked.ask(
                "GET",
                "/metrics",
                headers={"Authorization": f"Bearer {wrong}".encode(errors="replace").decode("latin-1")},
            )[0]
            == 401
        )
    assert locked.ask("GET", "/metrics", headers={"Authorization": f"Bearer {TOKEN}"})[0] == 200


def test_a_login_gives_a_cookie_that_scripts_and_other_sites_do_not_get(locked: WebClient) -> None:
    status, headers, _ = locked.post("/api/login", {"token": TOKEN})
    assert status == 200
    value, _, flags = headers["set-cookie"].partition("; ")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(flags.split("; "))
    assert TOKEN not in value
    assert locked.ask("GET", "/api/labs", headers={"Cookie": value})[0] == 200
    assert locked.ask("GET", "/api/labs", headers={"Cookie": value[:-1] + ("0" if value[-1] != "0" else "1")})[0] == 401
    name = value.partition("=")[0]
    assert locked.ask("GET", "/api/labs", headers={"Cookie": f"{name}={TOKEN}"})[0] == 401


def test_beyond_loopback_names_of_this_machine_are_answered_and_others_refused() -> None:
    access = PageAccess("0.0.0.0", 80, TOKEN)
    for host, ours in {
        socket.gethostname(): True,
        "192.0.2.7:80": True,
        "[2001:db8::1]:80": True,
        "evil.example": False,
    }.items():
        refused = access.refusal("GET", "/", {"host": host}, open_to_all=True)
        assert (refused is None) == ours, host


def test_an_address_that_cannot_be_used_is_named(answers: Answers) -> None:
    answers(lambda bind, port: listen(bind, port, TOKEN))


def test_a_port_in_use_is_named() -> None:
    assert len(make_token()) >= 43
    first = listen(LOOPBACK, 0, TOKEN)
    try:
        with pytest.raises(InputError, match=f"--port {first.port} is used by another process"):
            listen(LOOPBACK, first.port, TOKEN)
    finally:
        first.socket.close()


def test_connections_streams_and_the_time_of_a_request_are_bounded(
    page: WebClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webserver, "_REQUEST_S", 0.2)
    monkeypatch.setattr(webserver, "_CONNECTIONS", 20)
    halves = [socket.create_connection((LOOPBACK, page.port), timeout=5) for _ in range(30)]
    for each in halves:
        with suppress(ConnectionError):  # those too many are closed at once
            each.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
            assert each.recv(100) == b"", "closed without an answer"
    again = socket.create_connection((LOOPBACK, page.port), timeout=5)
    again.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HTT")  # the second one never ends
    found = b"".join(iter(lambda: again.recv(1 << 16), b""))
    assert found.count(b"HTTP/1.1 200") == 1
    for each in (*halves, again):
        each.close()
    monkeypatch.setattr(LabDesk, "streams", MOST_STREAMS)
    monkeypatch.setattr(LabDesk, "viewers", lambda *_: None)
    assert page.ask("GET", "/api/labs/zone/events")[0] == 503


def test_a_token_file_is_long_enough_and_private(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with pytest.raises(InputError, match="is not a file"):
        read_token(file, "token")
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o644)
    with pytest.raises(InputError, match="can be read by other users"):
        read_token(file, "token")
    file.chmod(0o600)
    assert read_token(file, "token") == TOKEN
    for short in ("", "short", "two words of a token", "\x00" * 3, "ä" * 40):
        file.write_text(short)
        with pytest.raises(InputError, match="16 or more characters"):
            read_token(file, "token")


def test_the_token_as_a_password_is_the_token_too() -> None:
    access = PageAccess(LOOPBACK, 8080, TOKEN)

    def refused(given: str) -> bool:
        headers = {"host": f"{LOOPBACK}:8080", "authorization": f"Basic {given}"}
        return access.refusal("GET", "/api/labs", headers, open_to_all=False) is not None

    assert not refused(b64encode(f"heddle:{TOKEN}".encode()).decode())
    for wrong in (f"heddle:{TOKEN}x", TOKEN, f"{TOKEN}:", "heddle:", ""):
        assert refused(b64encode(wrong.encode()).decode())
    assert refused("=not base64=")
    assert refused(b64encode(b"heddle:\xff").decode())
