"""`./inv test` installs every program that the chosen tests start, and no other: the tests' sources are read, and each
program is looked up in the packages of the suite and in the marks `needs` of its file.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from heddle.base.problems import InputError
from heddle.cli import test_verb
from heddle.cli.test_verb import ALL, QUICK, SUITES, _marked, check_suite, marked_needs, needed_packages
from heddle.host import packages
from heddle.host.packages import BUILD, PARTS, TEST_EXTRAS
from tests.marks import deep

TESTS = Path(__file__).resolve().parents[1]
# Of Debian's essential packages, of the shell, and Python, which runs the tests: on every machine.
ESSENTIAL: Final = frozenset(
    {
        "bash", "cat", "dd", "dpkg", "echo", "env", "exec", "exit", "false", "find", "hostname", "kill", "printenv",
        "python3",
        "rm", "sh", "sleep", "tar", "test", "timeout", "touch", "tr", "true", "uniq",
    }
)  # fmt: skip
# Tests look whether these are there, and do without them.
LOOKED_FOR: Final = frozenset({"iptables-save", "nft", "containerlab", "sudo", "prometheus"})
# Words that stand for a program that does not exist; and, of suite unit, words that are data and start nothing.
DATA: Final = {"": frozenset({"no-such-command"}), "unit": frozenset({"a", "bgpd", "docker", "ip", "zebra"})}
# Functions whose first list of words is a command. `docker` and `ask` take words of the engine's own.
RUNNERS: Final = frozenset({"run", "Popen", "call", "check_call", "check_output", "command", "exec", "capture"})
ENGINE: Final = frozenset({"docker", "ask"})
NEEDED_BY_PLACES: Final = frozenset({"openssh-server", "openssh-client", "git"})
FOLDERS: Final = {
    "unit": ("unit",),
    "golden": ("golden",),
    "netns": ("netns", "."),
    "clab": ("clab", "netns", "."),
    "browser": ("browser",),
    "vm": ("vm",),
}
_COMMAND: Final = re.compile(r"(?:^|[;&|(]|\bdo\b|\bthen\b)\s*(?:exec\s+)?([a-z][a-z0-9-]*)(?=\s)")
_PROGRAM: Final = re.compile(r"[a-z][a-z0-9_.+-]*")


@cache  # files of tests/netns are of several suites
def programs_of(source: str) -> tuple[tuple[str, int], ...]:
    """Programs that a source starts, and the line of each."""
    return tuple(_programs_of(source))


def _programs_of(source: str) -> Iterator[tuple[str, int]]:
    tree = ast.parse(source)
    engine = {id(word) for call in _calls(tree) if _name(call) in ENGINE for word in ast.walk(call)}
    brought = frozenset(program for part in PARTS.values() for program in part.programs)
    for node in ast.walk(tree):
        if isinstance(node, ast.List | ast.Tuple) and id(node) not in engine:
            words = [_text(each) for each in node.elts]
            if words and words[0] in brought:
                yield words[0], node.lineno  # a command, wherever it is given to a runner
            for at, word in enumerate(words):
                if word in ("sh", "bash") and words[at + 1 : at + 2] == ["-c"]:
                    yield from ((found, node.lineno) for found in _COMMAND.findall("".join(words[at + 2 : at + 3])))
    for call in _calls(tree):
        if id(call) in engine or not call.args:
            continue
        first = [each for each in call.args if isinstance(each, ast.List | ast.Tuple)][:1]
        if _name(call) in RUNNERS and first and first[0].elts and (word := _text(first[0].elts[0])):
            yield word, call.lineno
        if _name(call) in ("which", "find_program") and (word := _text(call.args[0])):
            yield word, call.lineno
        if _name(call) == "broken":  # tests/netns/test_validate.py: commands as lines
            yield from ((each.partition(" ")[0], call.lineno) for each in map(_text, call.args) if " " in each)


def _calls(tree: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _text(node: ast.AST) -> str:
    """A string, with a word for each part of it that is computed; empty for anything else."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(each) or "X" for each in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def needs_of(source: str) -> set[str]:
    """Parts that the marks `needs` of a source name; those of tests/sshd.py are of all that log in to its server."""
    tree = ast.parse(source if "mark.needs(" in source else "")
    calls = [call for call in _calls(tree) if ast.unparse(call.func) == "pytest.mark.needs"]
    found = {_text(word) for call in calls for word in call.args}
    return found | (
        needs_of((TESTS / "sshd.py").read_text(encoding="utf-8")) if re.search(r"= \[?NEEDS", source) else set()
    )


def uncovered(suite: str) -> list[str]:
    """Where a test of the suite starts a program that no package of the suite or of its file brings."""
    parts = {*needed_packages({"suite": suite, "build": False}), *BUILD}  # what needs clang says so, see --build
    always = ESSENTIAL | LOOKED_FOR | DATA[""] | DATA.get(suite, frozenset())
    found = []
    for folder in FOLDERS[suite]:
        for path in sorted((TESTS / folder).glob("*.py")):
            source = path.read_text(encoding="utf-8")
            known = always | {program for name in parts | needs_of(source) for program in PARTS[name].programs}
            for program, line in programs_of(source):
                if _PROGRAM.fullmatch(program) and program not in known:
                    found.append(f"{path.relative_to(TESTS)}:{line} {program}")
    return found


@pytest.fixture
def all_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with all packages that only some tests need: a suite's own are left."""
    monkeypatch.setattr(packages, "missing", lambda names: [])


@pytest.mark.usefixtures("all_there")
@pytest.mark.parametrize("suite", SUITES)
def test_every_program_that_a_suite_starts_is_in_its_packages(suite: str) -> None:
    assert uncovered(suite) == []


@pytest.mark.usefixtures("all_there")
def test_all_has_what_each_of_its_suites_needs() -> None:
    everything = set(needed_packages({"suite": "all", "build": False}))
    for suite in ALL:
        assert set(needed_packages({"suite": suite, "build": False})) <= everything


@pytest.mark.parametrize(
    ("source", "program"),
    [
        ('subprocess.run(["nosuch", "-x"])', "nosuch"),
        ('argv = ["tshark", "-r", path]\nrun(argv)', "tshark"),
        ('lab.capture("host1", ["iperf3", "-c", ip])', "iperf3"),
        ('subprocess.Popen([*where, "sh", "-c", f"cd {x} && socat - {y}"])', "socat"),
        ('shutil.which("hping3")', "hping3"),
        ('broken(lab, "host1", "ethtool -K eth1 gro on")', "ethtool"),
    ],
)
def test_programs_are_found_in_sources(source: str, program: str) -> None:
    assert program in {found for found, _ in programs_of(source)}


def test_the_words_of_an_engine_are_no_programs() -> None:
    assert list(programs_of('docker(["ps", "--all"])\nask(["exec", name, "ip", "route"])')) == []


def test_parts_of_marks_are_those_that_suites_do_not_install_anyway() -> None:
    named: set[str] = set()
    for path in TESTS.rglob("*.py"):
        if path != Path(__file__):
            named |= needs_of(path.read_text(encoding="utf-8"))
    assert named == set(TEST_EXTRAS)


@pytest.mark.parametrize(
    ("suite", "words", "chosen"),
    [
        deep(QUICK, ["-k", "test_an_offload_and or test_a_lab_runs_on"], {"ethtool", *NEEDED_BY_PLACES}),
        (QUICK, ["tests/netns/test_place_ssh.py", "-k", "test_a_lab_runs_on"], NEEDED_BY_PLACES),
        ("netns", ["tests/netns/test_lab_life.py"], set()),
        ("golden", ["--no-such-option"], set()),
    ],
)
def test_the_chosen_tests_decide(suite: str, words: list[str], chosen: set[str]) -> None:
    assert marked_needs(suite, words, TEST_EXTRAS) == chosen


def test_every_file_with_a_mark_is_asked() -> None:
    """And few others: pytest takes long to collect all of them."""
    for folder in sorted({name for names in FOLDERS.values() for name in names}):
        sources = {path: path.read_text(encoding="utf-8") for path in (TESTS / folder).glob("test_*.py")}
        needs = {path: needs_of(source) for path, source in sources.items()}
        for name in sorted({name for named in needs.values() for name in named}):
            assert {path for path, named in needs.items() if name in named} <= set(_marked(TESTS / folder, [name]))
    assert len(list(_marked(TESTS / "netns", ["sudo"]))) < 8


@pytest.mark.parametrize("absent", [[], ["openssh-server", "tshark"]])
def test_only_what_is_missing_and_needed_by_a_chosen_test_is_asked_for(
    absent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def needs(*words: object) -> frozenset[str]:
        asked.append(words)
        return frozenset({"tshark", "git"})

    monkeypatch.setattr(packages, "missing", lambda names: [PARTS[name] for name in absent])
    monkeypatch.setattr(test_verb, "marked_needs", needs)
    found = needed_packages({"suite": "netns", "build": False, "args": ("-k", "mine")})
    assert set(found) & set(TEST_EXTRAS) == ({"tshark"} if absent else set())
    assert asked == ([("netns", ("-k", "mine"), absent)] if absent else []), (
        "pytest is asked only where something is missing"
    )


def test_a_wrong_suite_is_named_with_the_nearest_word() -> None:
    with pytest.raises(InputError, match="did you mean quick"):
        check_suite("quik")
