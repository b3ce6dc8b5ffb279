"""Texts agree with the command line: words, flags, defaults, exit codes and counts, in the manual and in help.

A text is checked by its kind, wherever it stands: a new page needs no test of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import tasks
from heddle.cli import capture_live, nccltests, tuner_verb
from heddle.cli.argv import parse
from heddle.cli.endings import EXIT_CODES
from heddle.cli.program import commands_in, help_rows
from heddle.lab import linkstate
from heddle.switch.links.cuts import TUNNEL_PORT
from heddle_plugins.experiments import verbs as experiment_verbs
from heddle_plugins.workshop.catalogue import unit_ids
from tests.bench import order

ROOT: Final = Path(__file__).resolve().parents[2]
COMMANDS: Final = commands_in(vars(tasks))
VERBS: Final = {name: command.verb for name, command in COMMANDS.items()}
MADE: Final = ("docs/verbs.md",)  # from the code
# Flags of other programs that the manual names alone, without their program.
FOREIGN: Final = frozenset({
    "--build-arg", "--cap-add", "--network", "--privileged", "--security-opt",  # docker
    "--disable-protocol",  # tshark
    "--vars",  # containerlab
    "--dist", "--junit-xml", "--lf", "--pdb",  # pytest, and its options of Heddle and of these tests
    "--heddle-accept-unreliable",
    "--heddle-keep", "--heddle-labs", "--heddle-no-skip", "--heddle-pcap", "--heddle-runtime", "--regen-goldens",
})  # fmt: skip


def texts(*patterns: str) -> dict[str, str]:
    """Path -> text of the files that these patterns name, without those made from the code."""
    found = {str(path.relative_to(ROOT)): path for pattern in patterns for path in ROOT.glob(pattern)}
    return {name: path.read_text(encoding="utf-8") for name, path in sorted(found.items()) if name not in MADE}


MANUAL: Final = texts("README.md", "docs/*.md", "labs/*.md", "labs/*/*.md")
CODE: Final = texts("heddle/**/*.py", "plugins/**/*.py", "tasks.py", "tests/bench/*.py")


def commands(text: str) -> Iterator[list[str]]:
    """The words after `./inv` of each command: between backquotes, or at the start of a line of a block."""
    block = "\n".join(re.findall(r"^```[a-z]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    lines = re.findall(r"`(?:\./inv|heddle) ([^`\n]+)`", text) + re.findall(
        r"^\$? ?\./inv ([^\n]+)", block, re.MULTILINE
    )
    for line in lines:
        yield re.split(r"\s(?:--|#|;|\||&&?|>)(?:\s|$)", line)[0].split()


def test_flags_and_verbs_that_texts_name_exist() -> None:
    known = {flag for verb in VERBS.values() for flag in verb.flags} | {
        "--help", "--list", "--version", "--print-completion-script",
    }  # fmt: skip
    wrong = []
    for name, text in MANUAL.items():
        wrong += [f"{name}: {flag}" for flag in re.findall(r"`(--[a-z][a-z-]+)", text) if flag not in known | FOREIGN]
        for words in commands(text):
            if words[0].startswith("-") or words[0] in ("VERB", "help"):
                continue
            verb = VERBS.get(words[0])
            if verb is None:
                wrong.append(f"{name}: no verb {words[0]}")
            elif not verb.rest_after_positionals:
                flags = [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]
                wrong += [f"{name}: {verb.name} {flag}" for flag in flags if flag not in {*verb.flags, "--help", "-h"}]
    assert not wrong, "\n".join(wrong)


# The defaults that a help text writes itself, because the verb computes them later: (verb, flag) -> the code's value.
_OF_RUN: Final = {
    "--minbytes": nccltests._USUAL_BYTES,
    "--maxbytes": nccltests._USUAL_BYTES,
    "--stepfactor": "1, which is none",
    "--stepbytes": nccltests._USUAL_STEP,
    "--window": "64 per connection, shared by its queue pairs",
    "--nvlink-rate": "3600 where the algorithm needs them, else 0: ranks use their NICs",
}
WRITTEN: Final = {
    **{(verb, flag): value for verb in (*nccltests.VERBS, "tuner") for flag, value in _OF_RUN.items()},
    ("tuner", "--qps"): tuner_verb._QPS,
    **{(verb, "--tunnel-port"): f"{TUNNEL_PORT}" for verb in ("setup", "up")},
    ("fault", "--timeout"): f"{linkstate.SECONDS:g}",
    ("capture", "--count"): f"{capture_live.LINES}; with --out no limit",
    ("bench", "--runs"): f"{order.RUNS}",
    ("impact", "--workload"): experiment_verbs._USUAL,
}


def test_a_help_text_has_one_default_and_it_is_that_of_the_code() -> None:
    for name, command in COMMANDS.items():
        for rows in help_rows(command.verb).values():
            for word, does in rows:
                assert does.count("(default: ") <= 1, f"{name} {word}: {does}"
        for parameter in command.verb.parameters:
            default = re.search(r"\(default: ([^)]*)\)", parameter.option.help)
            if default is not None and re.search(r"\d", default[1]):
                assert WRITTEN.get((name, parameter.flag)) == default[1], (name, parameter.flag)


def test_a_default_that_the_manual_names_is_that_of_the_code() -> None:
    """`--cts-class control` (default)."""
    seen = 0
    for name, text in MANUAL.items():
        for flag, value in re.findall(r"`(--[a-z-]+) ([\w.-]+)` \(default\)", text):
            parameters = [verb.flags[flag] for verb in VERBS.values() if flag in verb.flags]
            assert value in [str(each.default) for each in parameters], f"{name}: {flag} {value}"
            seen += 1
    assert seen


def test_verbs_need_root_as_the_manual_says() -> None:
    """The table of install.md: left a verb with words that needs no root, right one that does."""
    section = MANUAL["docs/install.md"].partition("## Without root\n")[2].partition("\n## ")[0]
    seen = set()
    for row in re.findall(r"^\| (?!Needs|-)(.*) \|$", section, re.MULTILINE):
        for needs, cell in zip((False, True), row.split(" | "), strict=True):
            for words in (
                found.replace("--dry-run", "tiny --dry-run").split() for found in re.findall(r"`([a-z][^`]*)`", cell)
            ):
                command = COMMANDS[words[0]]
                typed = {} if len(words) == 1 else parse(command.verb, words[1:])
                assert typed is not None and command.root(typed) is needs, words
                seen.add(words[0])
    assert set(COMMANDS) - seen == {"bench", "docs", "lint", "soak", "test"}  # of a checkout


def test_exit_codes_that_texts_name_are_those_of_the_program() -> None:
    helps = {name: command.text for name, command in COMMANDS.items()}
    found = [
        (name, int(code))
        for name, text in (MANUAL | helps).items()
        for match in re.finditer(r"\b[Ee]xit codes? (\d+)(?:(?:,| or| and) (\d+))*", " ".join(text.split()))
        for code in re.findall(r"\d+", match[0])
    ]
    assert len(found) > 10
    assert [each for each in found if each[1] not in EXIT_CODES] == []


def test_texts_count_the_units_of_the_workshop() -> None:
    numbers = ("eight", "nine", "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen",
               "seventeen")  # fmt: skip
    units = re.compile(rf"\b({'|'.join(numbers)}) units\b", re.IGNORECASE)
    found = {(name, word.lower()) for name, text in MANUAL.items() for word in units.findall(text)}
    assert found
    assert not {each for each in found if numbers.index(each[1]) + 8 != len(list(unit_ids()))}


def test_modules_are_as_short_as_the_manual_says() -> None:
    (most,) = re.findall(r"Modules stay under (\d+) lines", " ".join(MANUAL["docs/architecture.md"].split()))
    modules = texts("heddle/**/*.py", "plugins/**/*.py")
    assert [name for name, text in modules.items() if len(text.splitlines()) >= int(most)] == []


def test_no_text_installs_from_a_package_index() -> None:
    found = [
        f"{name}: {line}"
        for name, text in MANUAL.items()
        for line in re.findall(r"(?:pip|pipx|uv tool) install[^`\n]*", text)
        if "heddle-fabric" in line
    ]
    assert not found, "no index has the distribution: " + "; ".join(found)


def test_lines_of_a_table_that_texts_quote_begin_as_printed() -> None:
    code = "\n".join(CODE.values())
    quoted = {each for text in MANUAL.values() for each in re.findall(r"#UNRELIABLE: (\w+ \w+ \w+)", text)}
    assert quoted
    assert [each for each in quoted if not re.search(rf"\b{each}\b", code)] == []
