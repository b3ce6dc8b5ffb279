"""Run `containerlab deploy`: its flags, its progress, and its error messages.

In:  a lab's name and its topology.
Out: nothing, or MachineError. containerlab exits with 0 even if commands of a node failed, so its log is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Final

from heddle.base.problems import MachineError, Problem
from heddle.base.process import Journal, dying_with_us, follow
from heddle.host.engine import binary
from heddle.kernel.devicetypes import explained
from heddle.runtimes.clab_containers import CLAB_DIR
from heddle.runtimes.netns_topology import read_topology

# One worker per node makes a deployment fast (each waits for the engine); beyond this number the engine only queues.
_MOST_WORKERS: Final = 128
_DEPLOY_S: Final = 1200.0  # it may have to pull the user's images; zone takes 10 s
_STEP: Final = re.compile(r"Creating container|Created link")
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
# `ERRO Failed to execute command command="sh x" node=rtsw1 rc=5`; what the command printed follows, indented.
_FAILED: Final = re.compile(
    r"Failed to execute command\s+command=(?:\"((?:[^\"\\]|\\.)*)\"|(\S+))\s+node=(\S+)\s+rc=(\d+)(.*)"
)
_PRINTED: Final = re.compile(r"^\s*(?:stdout=|stderr=)?\s*│?\s*(.*)$")
_ERROR: Final = re.compile(r"(?:^|\s)(?:ERRO\b|FATA\b|Error:)\s*(.*)")
_SHOWN: Final = 5  # failures that are printed in full
_KNOWN: Final = {
    r"no space left": "free some space; docker system df shows what uses it",
    r"subnet|pool overlaps": "run ./inv up again to use another subnet; docker network ls shows what uses this one",
    r"/proc/modules": "run ./inv setup containerlab to build one that accepts this kernel, which has no modules",
    r"no such image|pull access|manifest|failed to pull": "run ./inv image to build Heddle's, or docker pull IMAGE",
    r"already in use|already exist": "docker ps -a shows what has that name; ./inv down {lab} removes Heddle's lab",
    r"unable to apply caps": "this engine may not grant every capability: set privileged: false in the topology",
    r"cannot connect to the docker": "run ./inv doctor: it shows how to start the engine",
}


def environment(lab: str) -> dict[str, str]:
    """Without the check for newer versions, which takes seconds without a network; files go below /run."""
    return {"CLAB_VERSION_CHECK": "disable", "CLAB_LABDIR_BASE": str(CLAB_DIR / lab)}


def _command(lab: str, topology: Path) -> list[str]:
    """The whole command. `--name` is Heddle's name of the lab; an imported topology may have another one."""
    workers = min(_MOST_WORKERS, len(read_topology(topology).nodes))
    variables = [f"{name}={value}" for name, value in environment(lab).items()]
    flags = ["--name", lab, "--max-workers", str(workers), "--skip-labdir-acl", "--log-level", "info"]
    return ["env", *variables, str(binary.find() or "containerlab"), "deploy", "-t", str(topology), *flags]


def note(lab: str, topology: Path, journal: Journal) -> None:
    """Record the command in the journal."""
    journal.note(_command(lab, topology))


def deploy(lab: str, topology: Path, step: Callable[[], None]) -> None:
    """Deploy the topology; `step` is called for every container and link. MachineError with containerlab's errors."""
    printed: list[str] = []

    def line(text: str) -> None:
        printed.append(_COLOUR.sub("", text))
        if _STEP.search(printed[-1]):
            step()

    def late() -> Problem:
        why = f"did not end within {_DEPLOY_S:g} s; its last line: {printed[-1].strip() if printed else 'nothing'}"
        hint = "start daemons in a node's `exec` in the background, with their output in a file: each command must end"
        return Problem("", f"containerlab deploy of {lab}", why, hint)

    # TERM, not KILL: containerlab then removes its objects, including links that are not yet in a container.
    done = follow(dying_with_us(_command(lab, topology), "TERM"), line, timeout=_DEPLOY_S, late=late)
    raise_failures(lab, topology, done.code, printed)


def raise_failures(lab: str, topology: Path, code: int, said: Sequence[str]) -> None:
    """MachineError for failed commands of nodes, and for a failed deployment."""
    problems = _failed_commands(lab, said)
    if code != 0:
        errors = [match[1] for line in said if (match := _ERROR.search(line)) and "Failed to execute" not in line]
        problems.append(_deploy_problem(lab, topology, code, errors or [_last_words(said)]))
    if problems:
        rest = len(problems) - _SHOWN
        more = [Problem("", f"and {rest} more", "like these")] if rest > 0 else []
        raise MachineError(*problems[:_SHOWN], *more)


def _last_words(said: Sequence[str]) -> str:
    """The text below the heading `ERROR`, whose lines are wrapped for a terminal; else the last lines."""
    at = next((i for i, line in enumerate(said) if line.strip() == "ERROR"), len(said) - 4)
    return " ".join(line.strip() for line in said[at + 1 :] if line.strip())


def _failed_commands(lab: str, said: Sequence[str]) -> list[Problem]:
    """One problem for each failed command of a node, with its output: stderr before stdout."""
    problems = []
    for number, line in enumerate(said):
        if (match := _FAILED.search(line)) is None:
            continue
        quoted, plain, container, status, rest = match.groups()
        # Up to the next message, which begins with a time.
        block = list(takewhile(lambda text: not text[:1].strip(), said[number + 1 :]))
        at = next((i for i, text in enumerate(block) if text.strip().startswith("stderr=")), len(block))
        words = _words([*block[at:], *block[:at]]) or _words(re.split(r"\s+(?=std(?:out|err)=)", rest)[::-1])
        node = container.removeprefix(f"clab-{lab}-")
        command = (quoted or "").replace('\\"', '"') or plain
        why = f"failed with exit code {status}: {words or 'it printed nothing'}"
        problems.append(Problem(node, command, *explained(command.split(), why)))
    return problems


def _words(lines: Iterable[str]) -> str:
    found = [match[1].strip('" ') for line in lines if (match := _PRINTED.match(line)) and match[1].strip('" ')]
    return "; ".join(found[:3])


def _deploy_problem(lab: str, topology: Path, code: int, errors: Sequence[str]) -> Problem:
    """containerlab's last errors, with a hint for known ones."""
    why = "; ".join(dict.fromkeys(line.strip() for line in errors[-3:])) or f"it ended with exit code {code}"
    # The topology is removed with the lab that failed, so the hint renders it again.
    hint = f"run ./inv render FABRIC --out DIR, then containerlab deploy -t DIR/{topology.name} --log-level debug"
    for pattern, known in _KNOWN.items():
        if re.search(pattern, why, re.IGNORECASE):
            hint = known.format(lab=lab)
    return Problem("", f"containerlab deploy of {lab}", f"failed: {why}", hint)
