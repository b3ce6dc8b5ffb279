"""The MCP server over stdio, with the SDK's own client, beside a live lab and on another machine (--on ssh:)."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from heddle.base import state
from heddle.lab.lab import Lab
from heddle.runs.store import History
from tests.machine import children_of, patience, until
from tests.netns.collectives import workers
from tests.sshd import NEEDS, SshServer
from tests.typed import typed

ROOT = Path(__file__).resolve().parents[2]
SERVER = [sys.executable, "tasks.py", "mcp"]
Document = dict[str, Any]


def talk(work: Callable[[Client], Awaitable[None]], *flags: str) -> None:
    """Start a server, do the work as its client, and end it."""
    server = StdioServerParameters(command=SERVER[0], args=[*SERVER[1:], *flags], cwd=ROOT, env=dict(os.environ))

    async def main() -> None:
        async with asyncio.timeout(200):
            async with Client(server) as client:
                await work(client)

    asyncio.run(main())


async def asked(client: Client, tool: str, **arguments: Any) -> Document:
    """The structured result of a tool; the text has the same JSON."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result
    (content,) = result.content
    assert json.loads(getattr(content, "text", "")) == result.structured_content
    document: Document = result.structured_content
    return document


def printed(*words: str) -> Document:
    """The document of a verb, as a user gets it."""
    document: Document = json.loads(typed(*words, "--format", "json").stdout)
    return document


def test_an_assistant_reads_a_lab_and_gets_the_documents_and_problems_of_the_verbs(tiny: Lab) -> None:
    name = tiny.name
    assert typed("run", "--lab", name, "--size", "16K", "--iters", "1").returncode == 0

    async def work(client: Client) -> None:
        tools = {tool.name for tool in (await client.list_tools()).tools}
        assert {"status", "paths", "queues", "validate", "runs"} <= tools and "run" not in tools
        assert name in [lab["lab"] for lab in (await asked(client, "status"))["labs"]]
        assert await asked(client, "paths", lab=name) == printed("paths", "--lab", name)
        assert (await asked(client, "runs", lab=name))["runs"] == printed("runs", name)["runs"]
        ports = (await asked(client, "queues", lab=name, port="rtsw1:eth1", all=True))["ports"]
        assert {port["port"] for port in ports} == {"rtsw1:eth1"}
        checks = await asked(client, "validate", lab=name)
        assert checks["ok"] is True and "paths" in {check["name"] for check in checks["checks"]}

        for tool, arguments, said in (
            ("status", {"lab": "nope"}, "lab nope is not running"),
            ("paths", {"lab": name, "run": "999"}, "run 999 is not a run of lab"),
            ("run", {"lab": name}, "tool run is not offered"),
        ):
            result = await client.call_tool(tool, arguments)
            assert result.is_error
            assert said in getattr(result.content[0], "text", ""), result
            assert set(result.structured_content["error"]) == {"exit_code", "kind", "problems"}
            assert result.structured_content["error"]["exit_code"] == 2

    before = History.of(tiny).ids()
    talk(work)
    assert History.of(tiny).ids() == before


@pytest.mark.long("10 seconds and more")
def test_run_is_a_tool_where_it_is_allowed_and_two_runs_are_compared_and_written_as_a_report(tiny: Lab) -> None:
    a = str(printed("run", "--lab", tiny.name, "--size", "16K", "--iters", "1", "--qps", "1")["run_id"])

    async def work(client: Client) -> None:
        result = await asked(client, "run", lab=tiny.name, size="16K", iters=1, qps=2)
        assert [row["wrong"] for row in result["results"]] == [0]
        runs = (await asked(client, "runs", lab=tiny.name))["runs"]
        assert runs[-1]["qps"] == 2 and runs[-1]["last"]
        b = str(result["run_id"])
        found = await asked(client, "compare", a=a, b=b, lab=tiny.name)
        assert found == printed("compare", a, b, "--lab", tiny.name)
        assert [(row["name"], row["a"], row["b"]) for row in found["settings"]] == [("run.qps", "1", "2")]
        written = await asked(client, "report", runs=[a, b], lab=tiny.name)
        assert written["report"] == str(state.state_dir() / "reports" / f"report-{tiny.name}-{a}-{b}.html")
        page = Path(written["report"]).read_text(encoding="utf-8")
        assert (len(page.encode()), page[:15].lower()) == (written["bytes"], "<!doctype html>")

    talk(work, "--allow-run")


class Wire:
    """The protocol by hand: one JSON document a line."""

    def __init__(self, *flags: str) -> None:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.proc = subprocess.Popen([*SERVER, *flags], cwd=ROOT, text=True, **pipes)
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        self.send("initialize", hello, id=1)
        self.answers = [self.read()]
        self.send("notifications/initialized", {})

    def send(self, method: str, params: Document, **more: Any) -> None:
        assert self.proc.stdin is not None
        self.proc.stdin.write(json.dumps({"jsonrpc": "2.0", "method": method, "params": params, **more}) + "\n")
        self.proc.stdin.flush()

    def read(self) -> Document:
        assert self.proc.stdout is not None
        answer: Document = json.loads(self.proc.stdout.readline())
        return answer


def test_stdout_has_the_protocol_alone_and_closing_stdin_ends_the_server(tiny: Lab) -> None:
    wire = Wire()
    wire.send("tools/call", {"name": "paths", "arguments": {"lab": "nope"}}, id=2)
    wire.send("tools/call", {"name": "status", "arguments": {}}, id=3)
    wire.answers += [wire.read(), wire.read()]
    out, err = wire.proc.communicate(timeout=patience(60))
    assert (wire.proc.returncode, out) == (0, "")
    assert all(answer["jsonrpc"] == "2.0" for answer in wire.answers)
    assert {answer["id"] for answer in wire.answers} == {1, 2, 3}
    assert "lab nope is not running" in err and "Traceback" not in err


@pytest.mark.long
def test_a_run_whose_client_goes_away_ends(tiny: Lab) -> None:
    wire = Wire("--allow-run")
    try:
        arguments = {"lab": tiny.name, "size": "1M", "iters": 1000}
        wire.send("tools/call", {"name": "run", "arguments": arguments}, id=2)
        until(lambda: children_of(wire.proc.pid))
        (run,) = children_of(wire.proc.pid)
        until(lambda: workers(run))
    finally:  # else the lab would have a run without an end
        print(wire.proc.communicate(timeout=patience(120))[1])
    assert not Path(f"/proc/{run}").exists()
    again = typed("run", "--lab", tiny.name, "--size", "16K", "--iters", "1")
    assert again.returncode == 0, again.stderr


def test_at_a_terminal_it_says_what_it_is_for() -> None:
    parent, terminal = pty.openpty()
    try:
        done = subprocess.run(
            SERVER, cwd=ROOT, stdin=terminal, capture_output=True, text=True, check=False, timeout=patience(60)
        )
    finally:
        os.close(parent)
        os.close(terminal)
    assert (done.returncode, done.stdout) == (2, "")
    assert "speaks a protocol on stdin" in done.stderr and "docs/assistants.md" in done.stderr


@NEEDS
@pytest.mark.deep
def test_the_protocol_goes_through_to_the_place_and_errors_come_back(server: SshServer) -> None:
    program, *words = server.words("mcp", "--allow-run")
    command = StdioServerParameters(command=program, args=words, cwd=str(server.spot), env=dict(server.env))

    async def main() -> None:
        async with asyncio.timeout(200), Client(command) as client:
            assert {"compare", "report", "run"} <= {tool.name for tool in (await client.list_tools()).tools}
            found = (await client.call_tool("status", {})).structured_content
            assert found is not None and found["labs"] == []  # tests beside this one have labs, which are others'
            refused = await client.call_tool("paths", {"lab": "nope"})
            assert refused.is_error
            assert "lab nope is not running" in getattr(refused.content[0], "text", "")

    asyncio.run(main())
