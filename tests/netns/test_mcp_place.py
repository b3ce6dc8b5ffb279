"""The MCP server on another machine: the protocol goes through --place ssh:, and the tools show the labs there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from mcp import Client, StdioServerParameters

from tests.sshd import NEEDS, SshServer

pytestmark = [NEEDS, pytest.mark.deep]


def test_tools_show_the_labs_of_the_place_and_errors_come_back(
    server: SshServer, lab_name: Callable[[], str], leftovers: Callable[[str], list[str]]
) -> None:
    name = lab_name()
    assert server.inv("up", "tiny", "--name", name).returncode == 0
    program, *words = server.words("mcp", "--allow-run")
    command = StdioServerParameters(command=program, args=words, cwd=str(server.spot), env=dict(server.env))

    async def main() -> None:
        async with asyncio.timeout(200), Client(command) as client:
            assert {"compare", "report", "run"} <= {tool.name for tool in (await client.list_tools()).tools}
            status = (await client.call_tool("status", {})).structured_content
            assert [(lab["lab"], lab["converged"]) for lab in status["labs"]] == [(name, True)]
            measured = await client.call_tool("run", {"lab": name, "size": "16K", "iters": 1})
            assert [row["wrong"] for row in measured.structured_content["results"]] == [0]
            refused = await client.call_tool("paths", {"lab": "nope"})
            assert refused.is_error
            assert "lab nope is not running" in getattr(refused.content[0], "text", "")

    try:
        asyncio.run(main())
    finally:
        assert server.inv("down", name).returncode == 0
    assert leftovers(name) == []
