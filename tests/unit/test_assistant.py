"""Tools of the MCP server: which are offered, what they take, and what can never be typed through them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from heddle.base.problems import InputError
from heddle.cli.argv import parse
from heddle.cli.assistant import Assistant, arguments_of
from heddle.endpoints.workloadfile import load_workload
from heddle.fabric.fabricfile import load_fabric
from heddle.runs.run import plan_workload
from tests.answers import Answers
from tests.unit.test_help_examples import verbs

ROOT = Path(__file__).resolve().parents[2]
READS, ALL = Assistant(verbs(), changing=False), Assistant(verbs(), changing=True)
# What changes a lab or writes a file, of the verbs that are tools.
NEVER = {"action", "setting", "remove", "mode", "set", "table", "entry", "clear", "csv", "heatmap", "out", "fabric",
         "on", "format", "yes", "watch"}  # fmt: skip


def test_tools_are_offered_as_allowed_and_change_nothing() -> None:
    assert {tool.name for tool in ALL.tools()} - {tool.name for tool in READS.tools()} == {"run", "report", "fault"}
    assert all(tool.annotations is not None and tool.annotations.read_only_hint for tool in READS.tools())
    hints = {tool.name: tool.annotations.read_only_hint for tool in ALL.tools() if tool.annotations}
    assert (hints["run"], hints["report"], hints["fault"]) == (False, False, False)
    with pytest.raises(InputError, match="tool run is not offered") as caught:
        READS.words("run", {})
    assert "--allow-run" in str(caught.value)
    # No argument of a tool changes anything, but for the one that breaks a lab on purpose.
    for listed in ALL.tools():
        assert listed.input_schema["additionalProperties"] is False
        fields = listed.input_schema["properties"]
        never = NEVER - ({"action"} if listed.name == "fault" else set())
        assert not {name.replace("_", "-") for name in fields} & never, listed.name
        assert all(field["type"] and field["description"] for field in fields.values())
    # Required arguments are in the schema.
    needed = {tool.name: tool.input_schema.get("required") for tool in ALL.tools()}
    assert {name: names for name, names in needed.items() if names} == {"compare": ["a", "b"]}


def test_a_call_becomes_the_line_of_the_verb(answers: Answers) -> None:
    def line(tool: str, arguments: dict[str, Any]) -> object:
        name, *words = ALL.words(tool, arguments)
        assert name == tool
        return parse(verbs()[tool], words)

    answers(line)


def test_what_does_not_fit_is_named(answers: Answers) -> None:
    answers(ALL.words)
    for tool, arguments, said in (
        ("paths", {"qp": ["9" * 200_000]}, "is longer than 4,096 characters"),
        ("status", {"lab": "x" * 200_000}, "is longer than 4,096 characters"),
        ("run", {"qps": 10**5000}, "qps: a number of thousands of digits is not of type integer"),
    ):
        with pytest.raises(InputError, match=said):
            ALL.words(tool, arguments)


def test_the_page_lists_the_tools() -> None:
    page = (ROOT / "docs" / "mcp-tools.md").read_text()
    for name, verb in ALL.offered.items():
        (line,) = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]
        if name in READS.offered:
            listed = {word.strip(" `") for word in line.split("|")[2].split(",")} - {"-", ""}
            assert {word.replace("-", "_") for word in listed} == set(arguments_of(verb)), name


def test_listing_the_verbs_does_not_import_the_sdk() -> None:
    code = "import sys, tasks; assert 'mcp' not in sys.modules and 'anyio' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


def test_a_report_is_written_into_the_state_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: Answers
) -> None:
    monkeypatch.setenv("HEDDLE_STATE_DIR", str(tmp_path))
    answers(lambda arguments: parse(verbs()["report"], ALL.words("report", arguments)[1:]))


PATHS = (
    "/etc/hostname",
    "./x",
    "~/x",
    "../x",
    ".",
    "..",
    "a/../../x",
    "ring,placement=/etc/hostname",
    "a=~/x",
    "x /etc",
)


@pytest.mark.parametrize("path", PATHS)
def test_no_argument_of_a_tool_is_a_path(path: str) -> None:
    for tool in (each.name for each in ALL.tools()):
        tried = [name for name, each in arguments_of(ALL.offered[tool]).items() if each.kind in ("str", "list")]
        for name in tried:
            words = {**dict.fromkeys({"compare": ["a", "b"]}.get(tool, []), "last"), name: path}
            try:
                line = ALL.words(tool, words)
            except InputError as error:
                assert re.search(r"names a path|is not a run", str(error)), (tool, name)
            else:
                pytest.fail(f"{tool} takes {name}: {line}")
        assert tried or tool in ("status",)


@pytest.mark.parametrize(
    "typed", ["secret", "secret.yml", "secret.csv", "secret.et", "ring,placement=secret.txt", "link", "link.csv",
              "all-to-all-v,counts=secret.csv", "msccl,msccl=secret"]
)  # fmt: skip
def test_the_verb_of_a_tool_opens_no_file_of_the_user(
    typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("secret", "secret.yml", "secret.csv", "secret.txt", "secret.et"):
        (tmp_path / name).write_text("MARKER\n")
    (tmp_path / "link").symlink_to("/etc/hostname")
    (tmp_path / "link.csv").symlink_to("secret")
    for name, value in ALL.environment([]).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match="names no file of Heddle") as error:
        plan_workload(load_fabric("tiny").fabric, load_workload(typed).workload)
    assert "MARKER" not in str(error.value)
    assert load_workload("two-tenants").workload.jobs


def test_the_verb_of_a_tool_reads_workloads_of_heddle_and_writes_its_own_report(tmp_path: Path) -> None:
    monkeypatched = ALL.environment(["report", f"--out={tmp_path}/r.html"])
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from heddle.base.files import real; print(*map(real, sys.argv[1:]))",
         f"{tmp_path}/r.html", "traffic/two-tenants.yml"],
        env=monkeypatched, cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == [f"{tmp_path}/r.html", "traffic/two-tenants.yml"]
