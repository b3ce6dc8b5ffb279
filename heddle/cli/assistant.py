"""An MCP server on stdin and stdout: verbs as tools for an assistant (Model Context Protocol, SDK `mcp`).

In:  tool calls. Out: the JSON document of the verb as structured result; problems as the house prints them.
Each call runs this program as a child with `--format json`. So a tool does what the verb does, and nothing of a verb
can reach stdout, which carries the protocol alone. A verb is a tool by `tool` of its @verb; its parameters are those of
the verb, but for the ones that name files to write or change the lab. A tool that sends traffic or writes a file is not
offered unless the user has allowed it, and its file is in Heddle's state directory.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)

from heddle.base import state
from heddle.base.files import ONLY, VARIABLE
from heddle.base.problems import InputError, Problem, Problems, did_you_mean
from heddle.base.process import dying_with_us
from heddle.base.progname import as_started
from heddle.base.resources import HERE
from heddle.base.userfiles import make_dir
from heddle.base.version import VERSION
from heddle.cli.argv import Parameter, Typed, Verb, words_of
from heddle.cli.console import problems_json
from heddle.cli.endings import DEFECT
from heddle.cli.oldnames import present_name

_MOST_BYTES: Final = 1_000_000  # of a result: more does not fit into an assistant's context
REPORTS: Final = "reports"  # directory of the files that tools write, in the state directory
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9]+")
_LONGEST: Final = 100  # letters of a file's name
_LONGEST_VALUE: Final = 4096  # characters of an argument
_LARGEST: Final = 10**9  # of a number, as in argv.py
_SHOWN: Final = 80  # characters of a wrong value
_OUT: Final = "--out="
_PATH: Final = re.compile(r"(?:^|[,=:;/\s])(?:/|~|\.{1,2}(?:/|$))")  # and none without a slash: see files.ONLY
_RUN: Final = re.compile(r"(?:[a-z][a-z0-9]{0,11}:)?(?:[0-9]{1,9}|last)")  # never a path: a server may run as root
_RUNS: Final = "name a run as 3, last or zone:3; the tool `runs` lists them"
_WORDS: Final = "name one of traffic/, or write words, as ring,qps=4"
_END_S: Final = 20.0  # for a cancelled run to end its workers
_INSTRUCTIONS: Final = (
    "Heddle emulates an AI-training fabric: FRR switches, real queues, RoCEv2 hosts. Start with `status`: it lists the "
    "running labs. `paths` shows which path each queue pair (QP) of a run took, `queues` shows depth, marks, drops and "
    "pauses, `validate` checks the lab, `explain` defines a term. Bandwidths are emulated: compare ratios only."
)


# Parameters that every verb has; a tool's format and place are fixed.
_COMMON: Final = ("format", "on", "yes")
_TYPES: Final[Mapping[str, tuple[dict[str, Any], type | tuple[type, ...]]]] = {
    "int": ({"type": "integer"}, int),
    "float": ({"type": "number"}, (int, float)),
    "bool": ({"type": "boolean"}, bool),
    "list": ({"type": "array", "items": {"type": "string"}}, list),
    "str": ({"type": "string"}, str),
}


def arguments_of(verb: Verb) -> dict[str, Parameter]:
    """Names of a tool's arguments, and the parameters of its verb that they are; none for a verb that is no tool."""
    if verb.tool is None:
        return {}
    left_out = {*_COMMON, *verb.tool.without}
    offered = [
        p for p in verb.parameters if p.option.assistants and p.word not in left_out and p.name not in verb.files_out
    ]
    return {p.word.replace("-", "_"): p for p in offered}


class Assistant:
    """The tools of one server. verbs: by name, of tasks.py; changing: whether tools that change a lab are offered."""

    def __init__(self, verbs: Mapping[str, Verb], *, changing: bool) -> None:
        self._tools = {name: verb for name, verb in verbs.items() if verb.tool is not None}
        self.offered = {name: verb for name, verb in self._tools.items() if changing or not _changes(verb)}

    def tools(self) -> list[Tool]:
        """As a client lists them."""
        return [_listed(verb) for verb in self.offered.values()]

    def words(self, name: str, arguments: Mapping[str, Any]) -> list[str]:
        """The command line of a call. InputError for a tool or argument that is not offered, or has another type."""
        verb = self.offered.get(name)
        if verb is None:
            hint = did_you_mean(name[:_SHOWN], self.offered)
            if name in self._tools:
                hint = "the user starts the server with ./inv mcp --allow-run to offer it"
            raise InputError(Problem("", f"tool {name[:_SHOWN]}", "is not offered", hint))
        keys, problems, values = arguments_of(verb), Problems(), dict[str, Any]()
        for key, value in arguments.items():
            parameter = keys.get(key)
            if parameter is not None and parameter.kind == "list" and isinstance(value, str):
                value = [value]  # noqa: PLW2901  (what an assistant writes often enough for a list of one)
            if parameter is None:
                word = key[:_SHOWN]
                problems.add(where=name, what=word, why="is no argument of this tool", hint=did_you_mean(word, keys))
            else:
                why, hint = _wrong(verb, parameter, value)
                if why:
                    problems.add(where=name, what=f"{key}: {_brief(value)}", why=why, hint=hint)
                values[parameter.name] = value
        for key, parameter in keys.items():
            if parameter.required and key not in arguments:
                problems.add(where=name, what=key, why="is missing", hint=f"give {' and '.join(_needed(keys))}")
        problems.raise_if_any()
        if _writes(verb):
            values["out_"] = str(_file(values, verb))
        # As `--flag=value`, so that no value can be taken for a flag. Required ones were checked above.
        return [*words_of(verb, values), "--format=json"]

    def environment(self, words: Sequence[str]) -> dict[str, str]:
        """Of the verb: it opens no file of the user, and writes none but that of its own --out."""
        written = [word.removeprefix(_OUT) for word in words if word.startswith(_OUT)]
        return {**os.environ, VARIABLE: json.dumps({each: each for each in written}), ONLY: "1"}

    async def call(self, name: str, arguments: Mapping[str, Any]) -> CallToolResult:
        """Run a tool, also by the name that it had in the version before."""
        name = present_name(name, self.offered, noted=False)
        try:
            words = self.words(name, arguments)
        except InputError as error:
            return _failed(problems_json("InputError", error.exit_code, error.problems))
        if _writes(self.offered[name]):
            make_dir(state.state_dir() / REPORTS)
        code, data = await _ran([*HERE.command(), *words], self.environment(words))
        if len(data) > _MOST_BYTES:
            why = f"has {len(data):,} bytes, and at most {_MOST_BYTES:,} are returned"
            hint = "choose less: arguments qp, host, port or class"
            return _failed(problems_json("InputError", 2, [Problem(name, "the result", why, hint)]))
        try:
            document = json.loads(data)
        except ValueError:
            why = f"ended with exit code {code} and without a result"
            return _failed(problems_json("Defect", DEFECT, [Problem("", f"./inv {name}", why, "see its stderr")]))
        return _failed(document) if "error" in document else _result(document, json.dumps(document))


def _changes(verb: Verb) -> bool:
    return verb.tool is not None and verb.tool.changes


def _writes(verb: Verb) -> str:
    """The suffix of the file that the tool writes below REPORTS in the state directory; empty for none."""
    return "".join(verb.endings_here[:1]) if _changes(verb) else ""


def _listed(verb: Verb) -> Tool:
    keys = arguments_of(verb)
    fields = {key: _schema(verb, p) for key, p in keys.items()}
    schema: dict[str, Any] = {"type": "object", "properties": fields, "additionalProperties": False}
    if needed := _needed(keys):
        schema["required"] = needed
    return Tool(
        name=verb.name,
        description=verb.tool.does if verb.tool else "",
        input_schema=schema,
        annotations=ToolAnnotations(read_only_hint=not _changes(verb), destructive_hint=False, open_world_hint=False),
    )


def _schema(verb: Verb, p: Parameter) -> dict[str, Any]:
    """Type, description, range and values of an argument."""
    words = p.option.offered(Typed(verb, p, in_help=True)) if p.option.closed else None
    limits = {"minimum": p.option.least, "maximum": p.option.most, "enum": words}
    known = {key: limit for key, limit in limits.items() if limit is not None}
    return {**_TYPES[p.kind][0], "description": as_started(p.option.help), **known}


def _wrong(verb: Verb, parameter: Parameter, value: Any) -> tuple[str, str]:
    """Why a value cannot be typed for a parameter, and a hint; empty if it can."""
    if not _fits(parameter, value):
        return f"is not of type {_TYPES[parameter.kind][0]['type']}", ""
    texts = [str(each) for each in (value if parameter.kind == "list" else [value])]
    runs = verb.tool is not None and parameter.name in verb.tool.runs
    for wrong, why, hint in (
        (len(str(value)) > _LONGEST_VALUE, f"is longer than {_LONGEST_VALUE:,} characters", ""),
        # The one kind of value that stands alone in the line.
        (parameter.required and texts[0].startswith("-"), "begins with -, as a flag does", ""),
        (not all(map(str.isprintable, texts)), "has a character that cannot be printed", ""),
        (runs and not all(map(_RUN.fullmatch, texts)), "is not a run", _RUNS),
        (any(map(_PATH.search, texts)), "names a path, which no argument does", _WORDS),
    ):
        if wrong:
            return why, hint
    return "", ""


def _fits(parameter: Parameter, value: Any) -> bool:
    if isinstance(value, int | float) and not abs(value) <= _LARGEST:
        return False
    if isinstance(value, bool) != (parameter.kind == "bool"):
        return False
    if parameter.kind == "list" and not all(isinstance(each, str) for each in value or []):
        return False
    return isinstance(value, _TYPES[parameter.kind][1])


def _brief(value: Any) -> str:
    """A value as JSON, cut where it is long. Python makes no text of a number of thousands of digits."""
    try:
        text = json.dumps(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _needed(keys: Mapping[str, Parameter]) -> list[str]:
    return [key for key, parameter in keys.items() if parameter.required]


def _file(values: Mapping[str, Any], verb: Verb) -> Path:
    """`reports/report-zone-0003-0005.html` of the state directory; the same file for the same words."""
    named = [values.get("lab", ""), *(Path(run).name for run in values.get("runs", ()))]
    words = [_NOT_IN_NAMES.sub("-", word) for word in named if word]
    stem = "-".join((verb.name, *(words or ("last",))))[:_LONGEST]
    return state.state_dir() / REPORTS / f"{stem}{_writes(verb)}"


def _failed(document: Mapping[str, Any]) -> CallToolResult:
    """An error document as an assistant reads it: the house's lines as text, the problems as data."""
    rows = document["error"]["problems"]
    text = "\n".join(str(Problem(row["where"], row["what"], row["why"], row["hint"])) for row in rows)
    return _result(document, text, failed=True)


def _result(document: Mapping[str, Any], text: str, *, failed: bool = False) -> CallToolResult:
    return CallToolResult(
        content=[TextContent(type="text", text=text)], structured_content=dict(document), is_error=failed
    )


async def _ran(argv: Sequence[str], environment: Mapping[str, str]) -> tuple[int, bytes]:
    """Exit code and stdout of a child; its progress goes to our stderr. It ends with a cancelled call, and with us."""
    argv, nothing = dying_with_us(argv, "TERM"), subprocess.DEVNULL
    child = subprocess.Popen(argv, stdin=nothing, stdout=subprocess.PIPE, env=environment)
    try:
        data, _ = await asyncio.to_thread(child.communicate)
    except asyncio.CancelledError:
        # Not awaited: a cancelled task cannot wait. The server's process waits for the thread before it ends.
        threading.Thread(target=_end, args=(child,)).start()
        raise
    return child.returncode, data


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ask the child to end; kill it when it does not."""
    child.terminate()
    try:
        child.wait(_END_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def serve(verbs: Mapping[str, Verb], *, changing: bool) -> None:
    """Serve one client on stdin and stdout, until it closes stdin."""
    assistant = Assistant(verbs, changing=changing)

    async def listed(context: ServerRequestContext[Any], params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=assistant.tools())

    async def called(context: ServerRequestContext[Any], params: CallToolRequestParams) -> CallToolResult:
        return await assistant.call(params.name, params.arguments or {})

    server: Server[Any] = Server(
        "heddle", version=VERSION, title="Heddle", instructions=_INSTRUCTIONS,
        on_list_tools=listed, on_call_tool=called,
    )  # fmt: skip

    async def run() -> None:
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    asyncio.run(run())
