"""The MCP server on another machine: the protocol goes through --place ssh:."""

from __future__ import annotations

import asyncio

import pytest
from mcp import Client, StdioServerParameters

from tests.sshd import NEEDS, SshServer

pytestmark = [NEEDS, pytest.mark.deep]


def test_the_protocol_goes_through_to_the_place_and_errors_come_back(server: SshServer) -> None:
    program, *words = server.words("mcp", "--allow-run")
    command = StdioServerParameters(command=program, args=words, cwd=str(server.spot), env=dict(server.env))

    async def main() -> None:
        async with asyncio.timeout(200), Client(command) as client:
            assert {"compare", "report", "run"} <= {tool.name for tool in (await client.list_tools()).tools}
            assert (await client.call_tool("status", {})).structured_content == {"labs": []}
            refused = await client.call_tool("paths", {"lab": "nope"})
            assert refused.is_error
            assert "lab nope is not running" in getattr(refused.content[0], "text", "")

    asyncio.run(main())
