"""The command line as people, notebooks and CI meet it: words in, one result out, the right exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from heddle.base import plugins, state
from heddle.base.problems import CheckError, InputError, MachineError, Problem, did_you_mean
from heddle.cli.argv import Option, Verb, parameters_of, parse, wants_json, words_of
from heddle.cli.console import Console
from heddle.cli.program import commands_in, main
from heddle.cli.verbs import verb
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.model import Fabric
from heddle.spec.plain import dump_spec
from tests.answers import Answers
from tests.machine import child

ROOT = Path(__file__).resolve().parents[2]


def an_up(out: Console, fabric: str, name: str | None = None, set_: Sequence[str] = (), n: int = 1, go: bool = True,
          dry: bool = False, wait: float = 1.0) -> None:  # fmt: skip
    """Not called: only its signature is read."""


def an_exec(out: Console, node: str, cmd: Sequence[str] = (), lab: str | None = None) -> None:
    """Not called: only its signature is read."""


def a_set(out: Console, what: str | None = None, setting: Sequence[str] = (), lab: str | None = None) -> None:
    """Not called: only its signature is read."""


UP = Verb("up", parameters_of(an_up, [], {"set": Option(value="PATH=VALUE")}))
SET = Verb("set", parameters_of(a_set, ["what", "setting"], {}))
TEST = Verb("test", parameters_of(an_up, ["fabric", "name"], {}), rest="set_")
EXEC = Verb("exec", parameters_of(an_exec, [], {}), rest="cmd", rest_after_positionals=True)


def test_words_become_arguments(answers: Answers) -> None:
    verbs = {"up": UP, "exec": EXEC, "test": TEST}

    def read(line: str) -> object:
        name, *words = line.split()
        return parse(verbs[name], words)

    answers(read)


def test_a_positional_list_takes_all_words_that_are_left() -> None:
    assert parse(SET, ["x", "a=1", "--lab", "zone", "b=2"]) == {"what": "x", "setting": ["a=1", "b=2"], "lab": "zone"}
    assert SET.usage == "./inv set [WHAT] [SETTING...] [LAB] [flags]"
    again = words_of(SET, {"what": "x", "setting": ["a=1", "b=2"]})
    assert parse(SET, again[1:]) == {"what": "x", "setting": ["a=1", "b=2"]}


def test_wrong_words_are_named(answers: Answers) -> None:
    answers(lambda line: parse(UP, line.split()))
    for words in (["a", "--n", "9" * 5000], ["a", "--set", f"a={'9' * 5000}"]):
        with pytest.raises(InputError, match=r"\.\.\. has a number of more than 300 digits"):
            parse(UP, words)


def test_usage_lines_and_wrong_words_of_verbs() -> None:
    assert UP.usage == "./inv up FABRIC [flags]"
    assert EXEC.usage == "./inv exec [flags] NODE CMD..."
    assert TEST.usage == "./inv test FABRIC [NAME] [flags] [-- SET_...]"
    # All wrong words are reported together.
    with pytest.raises(InputError) as caught:
        parse(UP, ["--n", "x", "--nmae", "y"])
    assert len(caught.value.problems) == 3
    with pytest.raises(InputError, match="exec NODE is an empty word"):
        parse(EXEC, ["", "ls"])
    # A command that takes json itself does not make us speak json.
    assert wants_json(["up", "--format", "json"])
    assert not wants_json(["test", "--", "--format", "json"])
    # Hints do not list hundreds of words.
    assert did_you_mean("x", [f"node{i}" for i in range(500)]).endswith("node11, ... (500 in all)")


@verb()
def fail(out: Console, how: str) -> None:
    """Fail with the error of a parameter."""
    problem = Problem("here", "it", "is wrong", "fix it")
    kinds: dict[str, BaseException] = {
        "check": CheckError(problem), "input": InputError(problem), "machine": MachineError(problem),
        "ctrl-c": KeyboardInterrupt(), "bug": RuntimeError("oops"), "pipe": BrokenPipeError(), "exit": SystemExit(7),
    }  # fmt: skip
    raise kinds[how]


@verb(positional=["word"])
def work(out: Console, word: str = "nothing") -> None:
    """Do well."""
    out.say("progress")
    out.result({"word": word}, f"the word is {word}")


def ended(*words: str) -> int:
    return main({"fail": fail, "work": work}, ["inv", *words])


CODES = {"check": 1, "input": 2, "machine": 3, "ctrl-c": 130, "bug": 70, "exit": 7}


@pytest.mark.parametrize(("how", "code"), CODES.items())
def test_every_ending_has_its_code(
    how: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEDDLE_STATE_DIR", str(tmp_path))
    assert ended("fail", how) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert "Traceback" not in said.err
    assert len(list(tmp_path.glob("crash-*.log"))) == (how == "bug")


@pytest.mark.parametrize("words", [("fail", h) for h in CODES if h != "exit"] + [("wrok",), ("work", "--x"), ("--x",)])
def test_with_json_an_error_is_one_document_too(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEDDLE_STATE_DIR", str(tmp_path))
    code = ended(*words, "--format", "json")
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["exit_code"] == code
    assert {"where", "what", "why", "hint"} == set(error["problems"][0])


def test_with_json_stdout_is_one_document_and_progress_is_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("work", "hard", "--format", "json") == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == {"word": "hard"}
    assert said.err == "progress\n"


@pytest.mark.parametrize(
    "words", [[], ["--help"], ["-h"], ["--list"], ["help"], ["work", "--help"], ["--help", "work"], ["help", "work"]]
)
def test_help_is_no_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(*words) == 0
    assert "Do well." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ([""], ["fail", "work", *plugins.parts("verb")]),
        (["--"], ["--help", "--list", "--version"]),
        (["work", "--"], ["--format", "--on", "--word"]),
        (["work", "--format", ""], ["text", "json"]),
        (["work", "--word", ""], []),
        (["nothing", ""], []),
    ],
)
def test_shells_can_complete(typed: list[str], offered: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("--complete", "--", "./inv", *typed) == 0
    assert capsys.readouterr().out.split() == offered


def a_lab(name: str) -> None:
    """The record of a lab, as `up` writes it before it makes anything."""
    spec = dump_spec(load_fabric("tiny", name=name).spec)
    state.write_record(state.Record(name, "netns", "running", spec, "tiny"))


def test_every_verb_takes_its_lab_with_the_flag_and_as_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tasks

    monkeypatch.setenv("HEDDLE_STATE_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    a_lab("mine")
    verbs = {name: each.verb for name, each in commands_in(vars(tasks)).items()}
    of_labs = {name: verb_ for name, verb_ in verbs.items() if "--lab" in verb_.flags}
    assert len(of_labs) > 20
    first = {"perf": ["all_reduce"], "compare": ["1", "2"], "attach": ["host1"]}
    for name, verb_ in of_labs.items():
        words = first.get(name, [])
        with_flag = parse(verb_, [*words, "--lab", "mine"] + ["rtsw1", "ls"] * (name == "exec"))
        assert with_flag["lab"] == "mine", name
        if name != "exec":  # whose words are those of the command
            assert parse(verb_, [*words, "mine"]) == with_flag, name
            assert "[LAB]" in verb_.usage, name
    # Between and after other words; and a word with another meaning keeps it.
    assert parse(verbs["te"], ["plan", "mine"]) == {"action": "plan", "lab": "mine"}
    assert parse(verbs["queues"], ["mine", "set", "ecn.kmin=4KB"])["lab"] == "mine"
    assert parse(verbs["report"], ["3", "mine", "5"]) == {"runs": ["3", "5"], "lab": "mine"}
    for name in ("plan", "last"):
        a_lab(name)
    assert parse(verbs["te"], ["plan"]) == {"action": "plan"}
    (tmp_path / "mine").mkdir()
    assert parse(verbs["report"], ["mine"]) == {"runs": ["mine"]}, "a directory of a run"
    assert parse(verbs["te"], ["mine"]) == {"lab": "mine"}, "an action is never a file"


def test_a_spare_word_is_a_lab_where_it_can_mean_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tasks

    monkeypatch.setenv("HEDDLE_STATE_DIR", str(tmp_path))
    with pytest.raises(InputError, match="did you mean --lab zone or --fabric zone"):
        parse(tasks.run.verb, ["zone"])
    for word in ("64K", "rtsw1:eth1"):
        with pytest.raises(InputError, match=f"{word} is an unexpected word for paths"):
            parse(tasks.paths.verb, [word])
    for each in (tasks.validate.verb, tasks.paths.verb):
        assert parse(each, ["zone"]) == parse(each, ["--lab", "zone"]) == {"lab": "zone"}
    with pytest.raises(InputError, match="zone is an unexpected word") as caught:
        parse(tasks.paths.verb, ["--lab", "tiny", "zone"])
    assert "did you mean --lab" not in str(caught.value)
    for verb_, flag in ((tasks.down.verb, "--lab"), (tasks.paths.verb, "--lab"), (tasks.up.verb, "--fabric")):
        with pytest.raises(InputError, match=f"zone and {flag} tiny exclude each other"):
            parse(verb_, ["zone", flag, "tiny"])
        assert parse(verb_, ["zone", flag, "zone"]) == parse(verb_, ["zone"])


def test_an_option_that_is_a_key_of_the_fabric_file_is_hinted(answers: Answers) -> None:
    import tasks

    verbs = {"up": tasks.up.verb, "run": tasks.run.verb, "hashing": tasks.hashing.verb, "status": tasks.status.verb}
    answers(lambda line: parse(verbs[line.split()[0]], line.split()[1:]))


def test_there_is_a_completion_script_for_each_shell(capsys: pytest.CaptureFixture[str]) -> None:
    for shell in ("bash", "zsh", "fish"):
        assert ended("--print-completion-script", shell) == 0
        assert "--complete -- " in capsys.readouterr().out
    assert ended("--print-completion-script", "csh") == 2
    assert "csh names no known shell\n  hint: did you mean zsh?" in capsys.readouterr().err
    assert ended("--print-completion-script") == 2
    assert "<Argument" not in capsys.readouterr().err


def test_every_verb_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    import tasks

    for task in (t for t in vars(tasks).values() if hasattr(t, "verb")):
        assert main(vars(tasks), ["inv", task.verb.name, "--help"]) == 0
        assert task.__doc__
        assert all(p.option.help for p in task.verb.parameters), task.verb.name
    capsys.readouterr()


def test_misspelt_and_misplaced_words_get_a_hint(capsys: pytest.CaptureFixture[str], answers: Answers) -> None:
    answers(lambda words: f"exit code {ended(*words.split())}\n{capsys.readouterr().err}")


def test_help_lists_what_a_table_has(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import tasks
    from heddle.endpoints.transports import TRANSPORTS
    from heddle.endpoints.transports.rc import Rc
    from heddle.spec.load import presets
    from heddle.traffic.collectives import patterns

    monkeypatch.setitem(TRANSPORTS.core, "added", Rc)
    for name, said in {
        "run": [
            f"; one of {', '.join(TRANSPORTS)} (default: rc)",
            f"; one of {', '.join(dict.fromkeys(collective for collective, _ in patterns(of_files=True)))} (default",
            f"; one of {', '.join(dict.fromkeys(algorithm for _, algorithm in patterns(of_files=True)))}",
        ],
        "hashing": ["; one of flow, e-ecmp, flowlet"],
        "up": [f"; presets: {', '.join(presets())}\n"],
    }.items():
        assert main(vars(tasks), ["inv", name, "--help"]) == 0
        shown = capsys.readouterr().out
        assert all(each in shown for each in said), shown


def test_a_reader_that_stops_early_causes_no_error_message() -> None:
    argv = [sys.executable, str(ROOT / "tasks.py"), "--help"]
    with child(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    ) as inv:
        assert inv.stdout is not None
        assert inv.stderr is not None
        inv.stdout.close()
        assert inv.stderr.read() == b""
        assert inv.wait() == 141


@pytest.mark.parametrize(
    ("redirection", "code"),
    [("--list >&-", 0), ("--list <&- 2>&-", 0), ("nosuch >&- 2>&-", 2), ("--list >/dev/full", 3),
     ("nosuch --format json >/dev/full", 2)],
)  # fmt: skip
def test_streams_that_are_closed_or_full_are_no_defect(redirection: str, code: int, tmp_path: Path) -> None:
    line = f'exec "$0" "$1" {redirection}'
    env = {**os.environ, "HEDDLE_STATE_DIR": str(tmp_path)}
    done = subprocess.run(
        ["sh", "-c", line, sys.executable, str(ROOT / "tasks.py")], capture_output=True, text=True, env=env, check=False
    )
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_working_directory_that_is_gone_is_said_to_be(tmp_path: Path) -> None:
    line = 'cd "$2" && rmdir "$2" && exec "$0" "$1" render tiny --out x'
    gone = tmp_path / "gone"
    gone.mkdir()
    argv = ["sh", "-c", line, sys.executable, str(ROOT / "tasks.py"), str(gone)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "the working directory no longer exists" in done.stderr


def test_a_run_that_cannot_be_brings_no_fabric_up(capsys: pytest.CaptureFixture[str]) -> None:
    from heddle.cli.run_verb import lab_for_run

    def refuse(built: Fabric) -> None:
        raise InputError(Problem("", built.name, "is too small"))

    with (
        pytest.raises(InputError, match="tiny is too small"),
        lab_for_run(Console(), None, "tiny", (), None, check=refuse),
    ):
        pass
    assert capsys.readouterr().err == ""


def test_little_is_read_for_the_list_of_verbs() -> None:
    code = "import sys, tasks; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    modules = [name.split(".") for name in done.stdout.split()]
    heavy = {"rich", "pydantic", "numpy", "scapy", "jinja2", "paramiko", "matplotlib", "starlette"}
    assert heavy & {name[0] for name in modules} == set()
    rooms = {name[1] for name in modules if name[0] == "heddle" and len(name) > 1}
    assert rooms == {"base", "cli", "host", "places", "spec"}, "what only runs verbs is imported where it is used"


@pytest.mark.parametrize(
    ("module", "never"),
    [
        ("heddle.runs.store", ["numpy", "jinja2", "heddle.endpoints.nic", "heddle.switch", "heddle.lab.snapshot"]),
        ("heddle.lab.status", ["numpy", "jinja2", "scapy", "heddle.endpoints", "heddle.traffic"]),
        (
            "heddle.endpoints.runoptions",
            ["pydantic", "heddle.lab", "heddle.host", "heddle.endpoints.ranks", "heddle.endpoints.reports"],
        ),
        ("heddle.endpoints.worker", ["jinja2", "scapy", "rich", "invoke", "heddle.lab", "heddle.cli", "heddle.runs"]),
        ("heddle.switch.pfc.agent", ["pydantic", "jinja2", "scapy", "rich", "invoke", "heddle.lab", "heddle.cli"]),
    ],
)
def test_what_starts_often_imports_nothing_that_it_does_not_use(module: str, never: list[str]) -> None:
    """Readers of kept runs, `status`, the help of `run`, and the processes that a run or a lab starts."""
    code = f"import sys, {module}; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert set(done.stdout.split()) & set(never) == set()


def test_ctrl_c_while_modules_are_read_prints_no_traceback() -> None:
    argv = [sys.executable, "-X", "importtime", str(ROOT / "tasks.py"), "--version"]  # a line for each module
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "heddle.base" in line:
                process.send_signal(signal.SIGINT)
                break
        assert "Traceback" not in process.stderr.read()
    assert process.returncode in (-signal.SIGINT, 130)
