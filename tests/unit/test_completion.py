"""Completion: what is offered for values, lists and `--flag=value`, and what bash, zsh and fish make of it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from heddle.cli.completion import candidates, script
from heddle.runtimes.registry import RUNTIMES
from heddle.spec.load import presets
from heddle.traffic.collectives import patterns
from tests.answers import Answers
from tests.unit.test_help_examples import verbs

ROOT = Path(__file__).resolve().parents[2]


def offered(*typed: str) -> list[str]:
    return candidates(["./inv", *typed], verbs(), ["--help"])


def test_values_of_verbs_are_offered() -> None:
    assert offered("run", "--collective", "") == list(dict.fromkeys(name for name, _ in patterns(of_files=True)))
    assert offered("run", "--collective", "incast", "--algorithm", "") == ["direct"]
    assert offered("run", "--qp-mode", "") == ["split", "round-robin"]
    assert (offered("run", "--help", ""), offered("status", "--help", "")) == (["all"], [])
    assert offered("run", "--fabric", "") == presets()
    assert offered("run", "--fabric", "tiny", "--placement", "block,") == [
        *(f"block,{word}" for word in ("block", "cyclic", "interleaved", "random", "fragmented:")),
        *(f"block,host{n}" for n in range(1, 5)),
    ]  # fmt: skip
    # Values of other verbs are offered.
    suites = ["quick", "deep", "long", "all", "unit", "golden", "netns", "fuzz", "clab", "browser", "vm", "kube"]
    assert offered("test", "") == suites
    assert "roce" in offered("capture", "rtsw1:eth1", "--filter", "")
    assert "exec" in offered("help", "")
    assert "pinned" in offered("hashing", "") and "gap=" in offered("hashing", "flowlet", "--set", "")
    assert offered("queues", "") == ["set", "reset"]
    settings = offered("queues", "set", "alpha=2", "")
    assert "ecn.kmax=" in settings and "scheduler=" not in settings
    assert "spray" in offered("predict", "--mode", "") and "ring" in offered("predict", "--workload", "")
    assert offered("vm", "") == ["up", "status", "ssh", "down", "build"]
    assert offered("dashboard", "--port", "") == []
    # Flags are offered and no words of a command nor files.
    assert offered("up", "") == presets()
    assert offered("up", "zone", "") == [], "files, by the shell"
    assert "--runtime" in offered("up", "--dry-run", "--")
    assert offered("exec", "--lab", "x", "rtsw1", "ip", "-") == []
    assert offered("test", "--", "-") == []
    # Nodes and ports of an offline fabric are offered.
    assert offered("predict", "tiny", "--drain", "") == ["rtsw1", "rtsw2", "ctsw1", "ctsw2"]
    assert offered("predict", "tiny", "--down", "ctsw2,rtsw1:") == [f"ctsw2,rtsw1:eth{n}" for n in range(1, 5)]
    assert offered("predict", "nosuch", "--down", "") == []
    # Keys of a fabric file and their words are offered.
    keys = offered("up", "zone", "--set", "")
    assert {"routing.ecmp=", "link.host=", "queues.ecn.kmax=", "planes="} <= set(keys)
    assert "routing=" not in keys and "queues.ecn=" not in keys
    assert {"routing.ecmp=flow", "routing.ecmp=e-ecmp"} <= set(offered("up", "zone", "--set", "routing.ecmp="))
    assert offered("up", "zone", "--set=routing.resilient=") == [
        "--set=routing.resilient=true", "--set=routing.resilient=false",
    ]  # fmt: skip
    assert offered("up", "zone", "--set", "link.host=") == []
    # A value behind an equals sign is offered with its flag.
    assert offered("run", "--collective=") == [
        f"--collective={name}" for name in dict.fromkeys(name for name, _ in patterns(of_files=True))
    ]
    assert offered("up", "--runtime=c") == [f"--runtime={name}" for name in RUNTIMES]


BASH = """
source <("{program}" --print-completion-script bash)
COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}
COMP_WORDS=({words}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
_complete_inv
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def bash_completes(line: str, words: str, program: str = "./inv") -> list[str]:
    script = BASH.format(line=line, words=words, program=program)
    done = subprocess.run(["bash", "--norc", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_bash_gets_what_it_replaces(answers: Answers) -> None:
    answers(bash_completes)


def test_every_script_registers_the_programs_of_a_checkout() -> None:
    for name in ("bash", "zsh"):
        assert script(name).rstrip().endswith(" inv ./inv")
    assert "complete --command inv " in script("fish")


def shell(name: str) -> str:
    """Where a shell is; without it the test is skipped."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def test_fish_completes_ports_and_files() -> None:
    for line, replies in {
        "./inv predict tiny --down rtsw2:": [f"rtsw2:eth{n}" for n in range(1, 5)],
        "./inv up zo": ["zone"],
        "./inv up topologies/": ["topologies/"],
    }.items():
        asked = f"./inv --print-completion-script fish | source; complete --do-complete '{line}'"
        done = subprocess.run(
            [shell("fish"), "--no-config", "-c", asked], cwd=ROOT, capture_output=True, text=True, check=True
        )
        words = [word.split("\t")[0] for word in done.stdout.splitlines()]
        assert words == replies or (line.endswith("/") and all(word.startswith(replies[0]) for word in words)), line


def test_zsh_completes_switches(tmp_path: Path) -> None:
    asked = """
zmodload zsh/zpty; zpty it zsh -f -i
zpty -w it 'source <(./inv --print-completion-script zsh); PROMPT=""; bindkey "^I" expand-or-complete; print rea""dy'
zpty -r it seen '*ready*'
zpty -n -w it $'./inv predict tiny --drain ct\\t\\t'
zpty -r it seen '*ctsw2*'; print -r -- $seen
"""
    env = {**os.environ, "TERM": "dumb", "ZDOTDIR": str(tmp_path)}
    done = subprocess.run(
        [shell("zsh"), "-f", "-c", asked], cwd=ROOT, capture_output=True, text=True, check=False, env=env, timeout=60
    )
    assert "ctsw1" in done.stdout and "ctsw2" in done.stdout, done.stderr
