"""The server over HTTP, without a lab: who may use it, what it refuses, and how it says so."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import snappi

from heddle.base.problems import InputError
from heddle.base.process import run
from heddle.host.webserver import LOOPBACK, TlsFiles, listen
from heddle_plugins.otg.serving import API, MOST_BYTES, OtgServer
from tests.typed import typed
from tests.webclient import TOKEN, WebClient, running


@pytest.fixture(scope="module")
def server() -> Iterator[WebClient]:
    """A server for a lab that does not run, which needs no root."""
    with running(OtgServer(listen(LOOPBACK, 0, TOKEN), "no-such-lab", 60.0)) as port:
        yield WebClient(port)


def test_a_request_needs_the_token(server: WebClient) -> None:
    basic = "Basic " + base64.b64encode(f"heddle:{TOKEN}".encode()).decode()
    locked = WebClient(server.port, None)
    for headers, status in (({}, 401), ({"Authorization": basic[:-4]}, 401), ({"Authorization": basic}, 200)):
        assert locked.ask("GET", "/config", headers=headers)[0] == status
    answer = locked.ask("POST", "/config", {})
    assert (answer[0], answer[2]["code"], answer[2]["kind"]) == (401, 401, "validation")
    assert locked.ask("GET", "/config", headers={"Authorization": basic, "Origin": "https://evil.example"})[0] == 403


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "the request is not JSON"),
        (b"[" * 100_000, "the request is not JSON"),
        (b'{"ports":[' + b"{}," * 600_000 + b"{}]}", "has more than 524288 values"),
        (b" " * (MOST_BYTES + 1), f"has more than {MOST_BYTES} bytes"),
        (b"\xff\xfe\x00", "the request is not JSON"),
        (b'{"ports": NaN}', "ports is nan, which is not a list"),
        (json.dumps({"flows": {}, "portz": 1}).encode(), "portz is not a field"),
        (b"{}", "no-such-lab"),
    ],
)
def test_wrong_bodies_are_answered_as_errors_of_otg(server: WebClient, body: bytes, said: str) -> None:
    status, answer = sent(server, "/config", body)
    assert (status, answer["code"], answer["kind"]) == (400, 400, "validation")
    assert any(said in each for each in answer["errors"]), answer


def sent(server: WebClient, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
    import http.client

    link = http.client.HTTPConnection(LOOPBACK, server.port, timeout=60)
    try:
        link.request("POST", path, body, {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"})
        answer = link.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        link.close()


def test_what_needs_a_configuration_says_so_and_other_calls_are_named(server: WebClient) -> None:
    start = {"choice": "traffic", "traffic": {"choice": "flow_transmit", "flow_transmit": {"state": "start"}}}
    status, _, answer = server.ask("POST", "/control/state", start)
    assert status == 400 and "has no flows" in answer["errors"][0]
    assert server.ask("POST", "/monitor/metrics", {"choice": "port"})[2] == {
        "choice": "port_metrics",
        "port_metrics": [],
    }
    assert "port_name p has no capture" in server.ask("POST", "/monitor/capture", {"port_name": "p"})[2]["errors"][0]
    status, _, answer = server.ask("PATCH", "/config", {})
    assert status == 501 and "update_config is not supported" in answer["errors"][0]
    assert server.ask("POST", "/nothing", {})[2] == {"code": 404, "kind": "validation", "errors": ["Not Found"]}
    assert server.get("/capabilities/version")["api_spec_version"] == API


def test_snappi_gets_the_errors_over_tls(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=heddle",
         "-keyout", str(key), "-out", str(certificate)])  # fmt: skip
    tls = TlsFiles(certificate, key, "--tls-cert")
    with running(OtgServer(listen(LOOPBACK, 0, TOKEN, tls), "no-such-lab", 60.0)) as port:
        api = snappi.api(location=f"https://heddle:{TOKEN}@{LOOPBACK}:{port}", verify=False)
        assert api.get_version().app_version.startswith("heddle ")
        with pytest.raises(Exception, match="no-such-lab") as found:
            api.set_config(api.config())
        assert api.from_exception(found.value).kind == "validation"
        with pytest.raises(Exception, match="token"):
            snappi.api(location=f"https://{LOOPBACK}:{port}", verify=False).get_config()
    with pytest.raises(InputError, match="cannot be used for TLS"):
        listen(LOOPBACK, 0, TOKEN, TlsFiles(key, key, "--tls-cert"))
    with pytest.raises(InputError, match="No such file"):
        listen(LOOPBACK, 0, TOKEN, TlsFiles(tmp_path / "none", key, "--tls-cert"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sreve"], "otg sreve is not an action of otg"),
        (["serve", "--idle", "0"], "--idle 0 is outside the range"),
        (["serve", "--bind", "0.0.0.0"], "would send the token without encryption"),
        (["serve", "--tls-cert", "x"], "--tls-cert needs the other file, too"),
    ],
)
def test_wrong_words_are_refused(words: list[str], said: str) -> None:
    done = typed("otg", *words)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
