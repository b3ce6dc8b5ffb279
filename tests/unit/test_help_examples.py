"""Examples and hints of verbs are taken by the parser; the glossary's entries are whole, and words find them."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

import tasks
from heddle.base.problems import InputError
from heddle.cli import run_verb
from heddle.cli.argv import Verb, parse, verb_hint
from heddle.cli.checkout_verbs import bench
from heddle.cli.explain_verb import entry_text, find_term, glossary
from heddle.cli.nccltests import NcclFlags, NcclSizes
from heddle.cli.program import commands_in, example_line, examples, examples_text, main
from heddle.fabric import hashmodes
from heddle.fabric.fabricfile import load_fabric
from heddle.traffic.options import RunOptions
from heddle.traffic.readers import parse_sizes
from heddle.traffic.workload import Workload
from tests.answers import Answers
from tests.bench import _ONLY_BY_NAME, _groups, order

COMMANDS = commands_in(vars(tasks))
ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = examples()
LINES = [example_line(verb, words) for verb, shown in EXAMPLES.items() for words in shown]


@cache
def verbs() -> dict[str, Verb]:
    """All verbs, by name."""
    return {name: command.verb for name, command in COMMANDS.items()}


def test_each_verb_has_two_examples_and_each_example_a_verb() -> None:
    """A new verb gets its examples in heddle/cli/program.py."""
    assert set(EXAMPLES) == set(verbs())
    assert {name: len(found) for name, found in EXAMPLES.items() if len(found) < 2} == {}
    assert [name for name in EXAMPLES if max(map(len, examples_text(COMMANDS[name]).splitlines())) > 80] == [], (
        "they fit"
    )


def test_examples_are_taken_by_the_parser() -> None:
    for line in LINES:
        name, *words = shlex.split(line)[1:]
        assert parse(verbs()[name], words) is not None, line
        assert line == shlex.join(["./inv", name, *words]).replace("'./inv'", "./inv")


def test_nodes_and_ports_of_the_examples_are_those_of_the_preset() -> None:
    nodes = load_fabric("zone").fabric.by_name
    words = [word for line in LINES for each in shlex.split(line)[2:] for word in each.split(",")]
    named = [word for word in words if re.fullmatch(r"(rtsw|ctsw|host)\d+(:eth\d+)?", word)]
    assert len(named) > 3, "the test finds them"
    for word in named:
        node, _, port = word.partition(":")
        assert node in nodes, word
        assert not port or port in {each.name for each in nodes[node].ports}, word


def test_help_ends_with_the_examples() -> None:
    argv = [sys.executable, "tasks.py", "up", "--help"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.endswith(examples_text(COMMANDS["up"]))


def test_help_lists_every_group() -> None:
    (option,) = (each.option for each in bench.verb.parameters if each.name == "what")
    listed, _, rest = option.help.partition("Or all, ")
    names = re.findall(r"[a-z-]+", re.sub(r"Of \w+:", "", listed))
    assert sorted(names) == sorted(_groups(None))
    assert rest == f"without {', '.join(_ONLY_BY_NAME)}"


def test_order_takes_every_mode_that_keeps_one_path_with_resilient_tables_too() -> None:
    taken = {(turn.mode, turn.options.resilient) for turn in order.turns()}
    assert {mode for mode, _ in taken} == hashmodes.MODES.keys() - hashmodes.SPREADING
    assert {mode for mode, resilient in taken if resilient} == {"flow", "e-ecmp"}
    assert 4 * len(order.turns()) == order.RUNS, "every turn on each lab"


def said_of(verb: str, line: str) -> str:
    with pytest.raises(InputError) as caught:
        parse(verbs()[verb], line.split())
    return str(caught.value)


def test_a_word_that_is_no_verb_is_answered_with_one_that_does_it(answers: Answers) -> None:
    answers(lambda word: verb_hint(word, verbs()))


@pytest.mark.parametrize(
    "word",
    ["start", "stop", "remove", "delete", "show", "load", "reload", "restart", "logs", "apply", "config"],
)
def test_a_word_that_no_verb_is_near_gets_the_list_and_no_guess(word: str) -> None:
    assert verb_hint(word, verbs()).startswith("verbs: ")


def test_every_verb_that_a_hint_names_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    import tasks
    from heddle.cli.argv import _VERBS

    named = [words.split()[1] for hint in _VERBS.values() for words in hint.split("./") if words.startswith("inv ")]
    assert {name for name in named if not name.startswith("-")} <= set(verbs())
    assert not set(_VERBS) & set(verbs()), "a verb needs no hint"
    assert main(vars(tasks), ["inv", "list"]) == 2
    assert "lint" not in capsys.readouterr().err


def test_ports_and_flags_that_are_not_of_nccl_tests_get_their_own_hints() -> None:
    assert "did you mean ./inv capture rtsw1:eth1?" in said_of("capture", "rtsw1 eth1")
    assert "eth1?" not in said_of("capture", "rtsw1:eth2 eth1").replace("--lab eth1?", "")
    assert parse(verbs()["capture"], ["rtsw1:eth1", "zone"]) == {"port": "rtsw1:eth1", "lab": "zone"}
    # Other words are not taken for flags of nccl tests.
    assert "did you mean --iters?" in said_of("run", "-iters 5")
    assert "nccl" not in said_of("run", "--size 8 --itres 5")
    assert "nccl" not in said_of("up", "zone -b 8")
    assert parse(verbs()["run"], ["--iters", "5", "--size", "8", "--lab", "zone"]) == {
        "iters": 5, "size": "8", "lab": "zone",
    }  # fmt: skip
    text = said_of("run", "-g 8 --itres 5 zone")
    assert "did you mean --iters?" in text and "--lab zone" in text


# All of `all_reduce_perf --help` (nccl-tests 2.19.6), each with the value that it has there without the flag.
DEFAULTS = (
    "-t 1 -g 1 -b 32M -e 32M -i 1M -f 1 -n 20 -m 1 -w 1 -N 1 -p 0 -c 1 -o sum -d float -r 0 -z 0 -y 0 -T 0 -G 0 -C 0 "
    "-S 0 -J out.json -a 1 -R 0 -D 0 -M 0 -u 0 -I 0 -K 0"
)


@pytest.mark.parametrize("verb", ["run", "perf"])
def test_every_flag_of_nccl_tests_is_taken_and_one_without_effect_is_named(verb: str) -> None:
    flags, first = verbs()[verb].flags, ["all_reduce"] * (verb == "perf")
    usual = NcclFlags.of(DEFAULTS.split(), flags)
    assert (usual.notes, usual.problems) == ([], [])
    typed = parse(verbs()[verb], [*first, *DEFAULTS.split()])
    assert (typed["iters"], typed["json"], typed["run_cycles"], typed["per_iter_skip"]) == (20, "out.json", 1, 0)
    other = NcclFlags.of(shlex.split("-z 3 -G 1 --local_register 2 -m4 -x 1 -V 8 -t 2 -g 4 -n 5 zone"), flags)
    assert other.notes == [
        "note: -z 3 has no effect here: -N 8 -n 1 -w 0 has a barrier before each iteration",
        "note: -G 1 has no effect here: there is no CUDA graph",
        "note: -R 2 has no effect here: there is no memory of a GPU to register",
        "note: -m 4 has no effect here: each iteration is one operation",
        "note: -x 1 has no effect here: there are no CTAs of a GPU",
        "note: -V 8 has no effect here: there are no CTAs of a GPU",
        "note: -t 2 -g 4 is --ranks 8 here, each on a NIC",
    ]
    assert other.rest == ["-n", "5", "zone", "--ranks", "8"]
    assert parse(verbs()["run"], ["-g", "8", "-w", "0"]) == {"ranks": 8, "warmup": 0}


def test_a_wrong_value_of_a_flag_of_nccl_tests_is_named(answers: Answers) -> None:
    answers(lambda line: said_of("run", line))


def test_perf_measures_in_both_ways_as_nccl_tests_does() -> None:
    defaults = {each.word: each.default for each in run_verb.options_of_perf()}
    assert defaults["in_place"] == "both" and "collective" not in defaults


def test_cycles_of_nccl_tests_are_repetitions_of_the_job() -> None:
    wanted = Workload.of(RunOptions())
    assert [job.repeat for job in run_verb._repeated(wanted, 8).jobs] == [8]
    assert run_verb._repeated(wanted, None) == wanted
    for several, cycles, said in ((wanted, 0, "-N 0 is outside 1 to 50"), (replace(wanted, name="x"), 2, "not for a")):
        with pytest.raises(InputError, match=said):
            run_verb._repeated(several, cycles)


def test_programs_of_nccl_tests_are_known_by_their_names(answers: Answers) -> None:
    answers(run_verb._collective_of)


def test_flags_of_nccl_tests_mean_what_they_mean_there(answers: Answers) -> None:
    def sizes(line: str) -> object:
        typed = parse(verbs()["run"], line.split())
        asked = NcclSizes(*(typed.get(name) for name in ("minbytes", "maxbytes", "stepfactor", "stepbytes")))
        assert (typed["iters"], typed["warmup"]) == (20, 5)
        return parse_sizes(asked.size or "1M")

    answers(sizes)


def test_sizes_of_nccl_tests_that_are_not_possible_are_named_as_typed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answers: Answers
) -> None:
    import tasks
    from heddle.host import packages

    monkeypatch.setattr("heddle.cli.verbs.become_root", lambda _: None)
    monkeypatch.setattr(packages, "ensure", lambda *_, **__: None)

    def refused(line: str) -> str:
        assert main(vars(tasks), ["inv", "run", *line.split()]) == 2
        return capsys.readouterr().err

    answers(refused)


DOCS = Path(__file__).resolve().parents[2] / "docs"
ENTRIES = glossary()
# What the people who use such a fabric will certainly look up.
ASKED = """MMR, E-ECMP, CTS, headroom, Xoff, Xon, PSN, go-back-N, busbw, algbw, k, polarisation, rail, plane, incast,
flowlet, spraying, ECN, Kmin, Kmax, Pmax, watchdog, DCQCN, NACK, NAK, BTH, ICRC, CNP, PFC, QP, QPN, rank, collective,
ring, MTU"""


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them, and those written by hand."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
    return {*plain, *re.findall(r'<a id="([^"]+)">', text)}


def test_the_glossary_has_every_term_once_and_fits_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(ENTRIES) >= 60
    names = [name.lower() for entry in ENTRIES for name in entry.names]
    assert sorted(names) == sorted(set(names))
    assert all(find_term([term.strip()]) for term in ASKED.split(","))
    # Prose of an entry fits a narrow terminal.
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    for entry in ENTRIES:
        assert max(map(len, entry_text(entry).splitlines())) <= 80, entry.name


def test_an_entry_is_one_sentence_a_reason_a_command_and_a_page() -> None:
    there = cache(anchors)
    for entry in ENTRIES:
        assert entry.says.endswith(".") and not re.search(r"\.\s+[A-Z]", entry.says), f"{entry.word}: one sentence"
        assert entry.why.endswith("."), entry.word
        command = re.match(r"`(\./inv [^`]+)`", entry.see)
        assert command is not None, f"{entry.word}: `see` begins with a command between backquotes"
        for line in re.findall(r"`(\./inv [^`]+)`", entry.see):
            _, name, *words = shlex.split(line)
            assert parse(verbs()[name], words) is not None, line
        page, _, anchor = entry.more.partition("#")
        assert (DOCS / page).is_file(), entry.more
        assert not anchor or anchor in there(DOCS / page), entry.more


def test_a_term_is_found_by_its_names(answers: Answers) -> None:
    def name(typed: str) -> str:
        assert find_term(typed.split()) == find_term([typed])
        return find_term([typed]).name

    answers(name)


def test_a_word_that_is_no_term_gets_a_hint(answers: Answers) -> None:
    answers(lambda typed: find_term([typed]))


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What the verb prints."""
    assert main(vars(tasks), ["./inv", "explain", *words]) == 0
    return capsys.readouterr().out


def test_explain_prints_an_entry_and_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "Kmin")
    assert text == entry_text(find_term(["Kmin"])) + "\n"
    assert "see   ./inv queues set ecn.kmin" in text and "more  docs/queues.md#ecn" in text
    (found,) = json.loads(said(capsys, "--format", "json", "Kmin"))["terms"]
    assert set(found) == {"term", "also", "topic", "text", "why", "see", "more"}
    assert len(json.loads(said(capsys, "--format", "json"))["terms"]) == len(ENTRIES)
    listed = said(capsys)
    assert all(f"  {entry.name} " in listed for entry in ENTRIES)
