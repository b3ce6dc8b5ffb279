"""Plugins: entry points, what is wrong with one, the table of each kind, skeletons; and the core without one of ours.

Plugins of others are folders with a module and `NAME.dist-info/entry_points.txt` on PYTHONPATH, as pip installs them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from heddle.base import plugins
from heddle.base.problems import CheckError
from heddle.checks.queuechecks import NothingError
from heddle.checks.validate import guarded
from heddle.cli.machine_verbs import KINDS, skeleton
from heddle.lab.faults import orders, record

ROOT = Path(__file__).resolve().parents[2]
OURS = sorted(each.name for each in (ROOT / "plugins").iterdir() if (each / "__init__.py").exists())
CONTROL = """
from heddle.endpoints.congestion.swift import Swift
class Mine(Swift):
    about = "mine"
"""
VERB = """
from heddle.cli.verbs import verb
@verb(group="Lab", name="{name}")
def run_it(out):
    \"\"\"Say hello.\"\"\"
    out.result({{"hello": 1}}, "hello")
"""
Made = Callable[..., None]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Install a distribution: its entry points by kind, and the text of its module."""

    def make(
        name: str, points: Mapping[str, str], module: str | None = "", contract: str | None = "1", version: str = "1.0"
    ) -> None:
        info = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        sections = {"heddle.contract": f"{contract} = x"} if contract is not None else {}
        sections |= {f"heddle.{kind}": lines for kind, lines in points.items()}
        text = "\n".join(f"[{section}]\n{lines}\n" for section, lines in sections.items())
        (info / "entry_points.txt").write_text(text)
        if module is not None:
            (tmp_path / f"{name.replace('-', '_')}.py").write_text(module)

    return make


class Said(NamedTuple):
    """What a line of ./inv gave."""

    code: int
    out: str
    err: str


# Answers each request in a child of its own: what a plugin changes ends with it. Modules that know nothing of plugins
# are imported once, here: that takes most of the time of a line.
_SERVER = """
import contextlib, importlib, io, json, os, sys
sys.path.insert(0, sys.argv[1])
for name in ("jinja2", "rich.table", "heddle.cli.program", "heddle.fabric.fabricfile", "heddle.offline.forecast"):
    importlib.import_module(name)
from heddle.base import plugins
assert not plugins._found.cache_info().currsize and "heddle_plugins" not in sys.modules

def answer(there, lines):
    sys.path.insert(1, there)
    os.environ["PYTHONPATH"] = there
    os.chdir(there)
    import tasks
    from heddle.cli.program import main
    found = []
    for words in lines:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = main(vars(tasks), ["inv", *words])
            except SystemExit as end:
                code = end.code or 0
        found.append((code, out.getvalue(), err.getvalue()))
    print(json.dumps(found), file=sys.__stdout__)

for line in sys.stdin:
    there, lines, out, err = json.loads(line)
    child = os.fork()
    if child == 0:
        for number, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
        answer(there, lines)  # an exception ends this process, as it ends a program
        sys.exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
Lines = Callable[..., list[Said]]


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lines]:
    """./inv with the plugins of a folder, once for each line of words, in one process a call."""
    pipe, scratch, numbers = subprocess.PIPE, tmp_path_factory.mktemp("said"), count()
    servers: dict[Path, subprocess.Popen[str]] = {}

    def ask(there: Path, *typed: str, root: Path = ROOT) -> list[Said]:
        if root not in servers:
            argv = [sys.executable, "-c", _SERVER, str(root)]
            servers[root] = subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, cwd=scratch)
        server = servers[root]
        assert server.stdin is not None and server.stdout is not None
        said = scratch / f"{next(numbers)}.out"
        wrong = said.with_suffix(".err")
        server.stdin.write(json.dumps([str(there), [each.split() for each in typed], str(said), str(wrong)]) + "\n")
        server.stdin.flush()
        ended = server.stdout.readline()
        text, errors = said.read_text(), wrong.read_text()
        assert ended == "0\n" and "Traceback" not in text + errors, ended + text + errors
        return [Said(*each) for each in json.loads(text)]

    yield ask
    for server in servers.values():
        server.communicate(timeout=30)
        assert server.returncode == 0


def inv(there: Path, *words: str) -> Said:
    """./inv as it is started, with the plugins of a folder."""
    environment = {**os.environ, "PYTHONPATH": str(there)}
    start = [sys.executable, str(ROOT / "tasks.py"), *words]
    done = subprocess.run(start, capture_output=True, text=True, env=environment, check=False, timeout=60)
    assert "Traceback" not in done.stderr, done.stderr
    return Said(done.returncode, done.stdout, done.stderr)


def problems(said: Said) -> list[str]:
    """What `plugin --format json` found."""
    found = json.loads(said.out)["problems"]
    assert said.code == bool(found), said
    return [f"{each['what']} {each['why']}" for each in found]


LIST = "plugin --format json"
ASK = "run --fabric tiny --cc mine"


def test_a_part_is_offered_with_its_help_and_its_version(made: Made, tmp_path: Path, lines: Lines) -> None:
    made("their-cc", {"congestion": "mine = their_cc:Mine"}, CONTROL, version="0.3")
    said, words, near, found, doctor = lines(
        tmp_path,
        "run --help",
        "--complete -- inv run --cc m",
        "run --cc mime --fabric tiny",
        LIST,
        "doctor --format json",
    )
    assert "mine (mine)" in said.out
    assert "mine" in words.out.split()
    assert "did you mean mine?" in near.err
    (row,) = (each for each in json.loads(found.out)["plugins"] if each["name"] == "their-cc")
    assert (row["version"], row["parts"]) == ("0.3", [{"kind": "congestion", "name": "mine", "ok": True}])
    (check,) = (each for each in json.loads(doctor.out)["checks"] if each["name"] == "plugins")
    assert check["ok"] and "their-cc 0.3" in check["detail"]


def test_a_verb_is_listed_explained_completed_and_run(made: Made, tmp_path: Path, lines: Lines) -> None:
    made("their-verb", {"verb": "hello = their_verb:run_it"}, VERB.format(name="hello"))
    (tmp_path / "examples.txt").write_text("./inv hello\n  say hello\n")
    listed, text, data, said, words = lines(
        tmp_path, "--list", "hello", "hello --format json", "hello --help", "--complete -- inv h"
    )
    assert "  hello  " in listed.out
    assert text.out == "hello\n"
    assert json.loads(data.out) == {"hello": 1}
    assert said.out.endswith("Examples\n  ./inv hello\n      say hello\n")
    assert "hello" in words.out.split()
    assert inv(tmp_path, "hello").out == "hello\n"


def test_of_two_with_one_name_both_are_named_and_neither_is_used(made: Made, tmp_path: Path, lines: Lines) -> None:
    for name in ("a-cc", "b-cc", "c-cc"):
        made(name, {"congestion": f"mine = {name.replace('-', '_')}:Mine"}, CONTROL)
    found, asked = lines(tmp_path, LIST, ASK)
    said = problems(found)
    assert len(said) == 3 and all("which registers a name that the plugin" in each for each in said), said
    assert (asked.code, asked.out) == (2, "")
    assert "a-cc 1.0" in asked.err and "b-cc 1.0" in asked.err


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("raise RuntimeError('no licence')\n", "cannot be imported: RuntimeError: no licence"),
        ("import sys\nsys.exit(3)\n", "cannot be imported: SystemExit: 3"),
        ("class E(BaseException):\n  def __str__(self): raise E\nraise E\n", "cannot be imported: E"),
        ("x = (\n", "cannot be imported: SyntaxError"),
        ("print('hello')\n" + CONTROL, "writes to stdout when it is imported: 'hello'"),
        ("import no_such_package.part\n", "needs the Python package no_such_package, which is not installed"),
        ("Mine = 3\n", "registers an object that does not fit: it has no `about`"),
        ("Other = 3\n", "has no their_cc:Mine"),
        (None, "has no module their_cc"),
    ],
)
def test_a_part_that_cannot_be_used_costs_itself_only(
    made: Made, tmp_path: Path, lines: Lines, module: str | None, said: str
) -> None:
    made("their-cc", {"congestion": "mine = their_cc:Mine"}, module)
    found, asked, other, text = lines(tmp_path, LIST, ASK, "predict tiny --workload ring", "run --help")
    assert [each for each in problems(found) if said in each], found
    assert (asked.code, asked.out) == (2, "")
    assert said in asked.err and "the plugin their-cc 1.0" in asked.err
    assert other.code == 0
    assert "dcqcn" in text.out


@pytest.mark.parametrize(
    ("contract", "said"),
    [
        ("2", "was written for contract 2, which is newer: this Heddle has contract 1"),
        ("0", "was written for contract 0; this Heddle has 1"),
        (None, "does not say for which contract it was written"),
        ("x" * 99, "was written for contract xxxx"),
        ("9" * 5000, "was written for contract 9999"),
    ],
)
def test_another_contract_is_refused_with_one_sentence(
    made: Made, tmp_path: Path, lines: Lines, contract: str | None, said: str
) -> None:
    made("their-cc", {"congestion": "mine = their_cc:Mine"}, CONTROL, contract)
    found, asked = lines(tmp_path, LIST, ASK)
    (sentence,) = problems(found)
    assert sentence.startswith(f"plugin their-cc 1.0 {said}")
    assert asked.code == 2


@pytest.mark.parametrize(
    ("points", "said"),
    [
        ({"congestion": "dcqcn = their_cc:Mine"}, "uses a name of Heddle's core"),
        ({"verb": "run = their_cc:Mine"}, "uses a name of Heddle's core"),
        ({"collective": "msccl/xml = their_cc:Mine"}, "uses a name that the plugin readers has"),
        ({"congestions": "mine = their_cc:Mine"}, "a part of the unknown kind 'congestions'"),
        ({"congestion": "Mine = their_cc:Mine"}, "registers it by a wrong name or value: Mine = their_cc:Mine"),
        ({"congestion": "mine = their_cc"}, "registers it by a wrong name or value: mine = their_cc"),
        ({"congestion": "mine = heddle.endpoints.congestion.swift:Swift"}, "names an object of Heddle itself"),
    ],
)
def test_wrong_entry_points_are_named_and_heddles_own_parts_stay(
    made: Made, tmp_path: Path, lines: Lines, points: Mapping[str, str], said: str
) -> None:
    made("their-cc", points, CONTROL)
    found, text = lines(tmp_path, LIST, "run --help")
    (sentence,) = problems(found)
    assert said in sentence
    assert "receivers report marks" in text.out


def test_entry_points_that_are_no_text_are_left_out(made: Made, tmp_path: Path) -> None:
    made("their-cc", {"congestion": "mine = their_cc:Mine"}, CONTROL)
    changes: list[Callable[[Path], object]] = [
        os.mkfifo,
        lambda path: path.write_bytes(b"\xff\xfe[heddle.verb]\n\x00=\x00"),
        lambda path: path.write_text("[heddle.verb\n= = =\n[[x]]\n"),
        Path.mkdir,
        lambda path: path.symlink_to(path),
    ]
    for number, change in enumerate(changes):
        info = tmp_path / f"odd{number}-1.dist-info"
        info.mkdir()
        change(info / "entry_points.txt")
    assert "mine (mine)" in inv(tmp_path, "run", "--help").out
    assert inv(tmp_path, "predict", "tiny", "--workload", "ring").code == 0  # pydantic reads no plugins of its own


def test_a_shape_of_a_plugin_that_is_not_here_is_one_sentence(tmp_path: Path, lines: Lines) -> None:
    (tmp_path / "f.yml").write_text("name: f\nshape: torus\nracks: 2\n")
    (said,) = lines(tmp_path, "up f.yml --dry-run")
    assert said.code == 2
    assert "shape: torus is not one of clos, rail, dragonfly, fat-tree" in said.err


def test_ours_are_those_of_the_project_file() -> None:
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    named = {
        (group.removeprefix("heddle."), name): target
        for group, rows in points.items()
        if group.startswith("heddle.")
        for name, target in rows.items()
    }
    found = {
        (kind, name): part.target for kind in plugins.KINDS for name, part in plugins.parts(kind).items() if part.own
    }
    assert found == named
    assert set(OURS) == set(plugins.own_plugins())
    for target in found.values():
        resolve_name(target)


def test_the_picture_of_the_architecture_has_every_plugin() -> None:
    page = (ROOT / "docs/architecture.md").read_text().partition("## Core and plugins")[2].partition("\n## ")[0]
    upper = page.partition("```\n")[2].partition("│")[0]
    left = " ".join(re.split(" {4,}", line.removeprefix("plugins/:").strip())[0] for line in upper.splitlines())
    assert sorted(left.split()) == sorted(OURS)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout whose plugins can be taken away. Content is linked."""
    root = tmp_path_factory.mktemp("copy") / "a checkout"
    root.mkdir()
    for name in ("topologies", "templates", "traffic", "labs", "docs", "heddle", "requirements.lock", "inv"):
        (root / name).symlink_to(ROOT / name)
    (root / "heddle").unlink()  # its own path is where it looks for the rest
    shutil.copytree(ROOT / "heddle", root / "heddle", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "plugins", root / "plugins", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "heddle_plugins").symlink_to("plugins")
    for name in ("tasks.py", "pyproject.toml"):
        shutil.copy(ROOT / name, root / name)
    return root


@pytest.mark.parametrize("name", OURS)
def test_the_core_works_without_a_plugin_and_names_it(checkout: Path, tmp_path: Path, lines: Lines, name: str) -> None:
    verbs = [part.name for part in plugins.parts("verb").values() if part.plugin == name]
    away = checkout / "plugins" / name
    away.rename(checkout / "away")
    try:
        core = ("--list", "up tiny --dry-run", "predict tiny --workload ring", "run --help", "plugin")
        listed, *said = lines(tmp_path, *core, *verbs, root=checkout)
    finally:
        (checkout / "away").rename(away)
    assert not [verb for verb in verbs if f"\n  {verb} " in listed.out]
    assert [each.code for each in said[: len(core) - 1]] == [0] * (len(core) - 1), said
    for verb, each in zip(verbs, said[len(core) - 1 :], strict=True):
        assert (each.code, each.out) == (2, "")
        assert each.err.startswith(f"verb {verb} is a part of the plugin {name}, which is not in this installation")


def test_a_skeleton_of_each_kind_is_installed_and_used(
    tmp_path: Path, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    places = [str(skeleton(kind, f"my-{kind}")) for kind in KINDS]
    there = tmp_path / "installed"
    # The environment has no setuptools; hatchling, which builds the project's own wheel, builds these.
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-build-isolation", "--target"]
    done = subprocess.run([*pip, str(there), *places], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found, verb = lines(there, LIST, "my-verb zone")
    assert problems(found) == []
    assert verb.out == "zone: 12 switches, 16 hosts\n"
    path = os.pathsep.join([str(there), str(ROOT)])
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "heddle.testing.plugin"]
    # Tests of a lab need root and namespaces: tests/netns/test_wheel_job.py runs those.
    done = subprocess.run(
        [*words, "-m", "not fabric", *places],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path}, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0 and "8 passed, 6 deselected" in done.stdout, done.stdout + done.stderr


WRONG = {
    "plugin old": "./inv plugin old is not an action",
    "plugin new": "./inv plugin new needs a kind and a name",
    "plugin new congestions x": "is not a kind with a skeleton",
    "plugin new verb": "./inv plugin new verb needs a name",
    "plugin new verb Run!": "./inv plugin new verb Run! is no name of a part",
    "plugin new verb run": "verb run is there already",
    "plugin new collective all-reduce": "collective all-reduce is there already",
    "plugin new verb x --out /dev/null": "/dev/null exists already",
    "plugin new verb x --out /proc/x": "/proc/x",
}


def test_wrong_words_of_plugin_new_are_named(tmp_path: Path, lines: Lines) -> None:
    for said, text in zip(lines(tmp_path, *WRONG), WRONG.values(), strict=True):
        assert said.code in (2, 3) and said.out == ""
        assert text in said.err


def test_a_recorded_fault_of_a_plugin_that_is_gone_is_listed_and_stays(tmp_path: Path) -> None:
    lab: Any = SimpleNamespace(name="x", dir=tmp_path, runtime=SimpleNamespace(here=True))
    record.replaced(lab, (), [record.SetFault("theirs", "a1:eth1", {}).being_set()])
    assert orders.finish(lab) or record.read(tmp_path), "it cannot be undone without its plugin"
    assert orders.in_force(lab) == []
    (row,) = orders.fault_rows(lab)
    assert (row["kind"], row["where"], row["undo"]) == ("theirs", "a1:eth1", "./inv down x")
    orders.undo(lab, record.read(tmp_path))
    assert [each.kind for each in record.read(tmp_path)] == ["theirs"]


def test_an_exception_of_a_plugin_is_named_as_its(made: Made, tmp_path: Path) -> None:
    made(
        "their-verb",
        {"verb": "hello = their_verb:run_it"},
        VERB.format(name="hello").replace("    out.result", "    1 / 0\n    out.result"),
    )
    said = inv(tmp_path, "hello")
    assert said.code == 70 and "was raised by the plugin their-verb" in said.err


def test_a_check_of_a_plugin_may_have_nothing_to_check() -> None:
    def check(subject: Any) -> Any:
        raise (NothingError if subject is None else KeyError)("one network")

    with pytest.raises(NothingError, match="one network"):
        guarded(check)(None)  # type: ignore[arg-type]
    with pytest.raises(CheckError, match="raised KeyError"):
        guarded(check)(0)  # type: ignore[arg-type]


def test_a_broken_verb_hides_no_other_mistake(made: Made, tmp_path: Path, lines: Lines) -> None:
    made("their-verb", {"verb": "hello = their_verb:run_it"}, "import nope_nope\n")
    flag, words = lines(tmp_path, "--lab x status", "--complete -- inv hello --")
    assert flag.code == 2 and "is not a flag of ./inv" in flag.err
    assert (words.code, words.out) == (0, "")
