"""Running `containerlab deploy`: its flags, its progress as it comes, and what it says when something fails.

In:  a lab's name and its topology.
Out: nothing, or MachineError. containerlab ends well although commands of a node failed; what it logs tells of them.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Final

from heddle.base.problems import MachineError, Problem, trouble
from heddle.base.process import Journal
from heddle.host.engine import binary
from heddle.runtimes.clab_containers import CLAB_DIR
from heddle.runtimes.netns_topology import read_topology

# One worker a node is what makes a deployment quick (each waits for the engine); beyond this the engine only queues.
_MOST_WORKERS: Final = 128
# TERM, not KILL: containerlab then takes down what it was making, links that stand in no container yet included.
_DIES_WITH_US: Final = ("setpriv", "--pdeathsig", "TERM", "sh", "-c", '[ "$PPID" = "$0" ] && exec "$@"')
_PATIENCE_S: Final = 30.0  # for that
_DEPLOY_S: Final = 1200.0  # images of somebody's own are pulled meanwhile; zone takes 10 s
_STEP: Final = re.compile(r"Creating container|Created link")
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
# `ERRO Failed to execute command command="sh x" node=rtsw1 rc=5`; what the command printed follows, indented.
_FAILED: Final = re.compile(
    r"Failed to execute command\s+command=(?:\"((?:[^\"\\]|\\.)*)\"|(\S+))\s+node=(\S+)\s+rc=(\d+)(.*)"
)
_PRINTED: Final = re.compile(r"^\s*(?:stdout=|stderr=)?\s*│?\s*(.*)$")
_TELLS: Final = re.compile(r"(?:^|\s)(?:ERRO\b|FATA\b|Error:)\s*(.*)")
_SHOWN: Final = 5  # failures that are printed one by one
_KNOWN: Final = {
    r"no space left": "free some room: docker system df shows what takes it",
    r"subnet|pool overlaps": "./inv up again takes another subnet; docker network ls shows who has this one",
    r"/proc/modules": "this kernel has no modules: ./inv setup containerlab builds a containerlab that knows of that",
    r"no such image|pull access|manifest|failed to pull": "./inv image builds Heddle's; others: docker pull IMAGE",
    r"already in use|already exist": "docker ps -a shows who has that name; ./inv down {lab} removes what is Heddle's",
    r"unable to apply caps": "this engine may not give every right away: the topology needs privileged: false",
    r"cannot connect to the docker": "./inv doctor says how to start the engine",
}


def environment(lab: str) -> dict[str, str]:
    """Without the look for newer versions, which takes seconds where nothing answers; files go below /run."""
    return {"CLAB_VERSION_CHECK": "disable", "CLAB_LABDIR_BASE": str(CLAB_DIR / lab)}


def deploy_argv(lab: str, topology: Path) -> list[str]:
    """The whole command. `--name` is Heddle's name of the lab, whatever a topology of somebody's own calls itself."""
    workers = min(_MOST_WORKERS, len(read_topology(topology).nodes))
    flags = ["--name", lab, "--max-workers", str(workers), "--skip-labdir-acl", "--log-level", "info"]
    return [str(binary.find() or "containerlab"), "deploy", "-t", str(topology), *flags]


def note(lab: str, topology: Path, journal: Journal) -> None:
    """Put the command into the journal."""
    variables = [f"{name}={value}" for name, value in environment(lab).items()]
    journal.note(["env", *variables, *deploy_argv(lab, topology)])


def deploy(lab: str, topology: Path, step: Callable[[], None]) -> None:
    """Deploy the topology; `step` is called for every container and link. MachineError with what went wrong."""
    said: list[str] = []
    argv = [*_DIES_WITH_US, str(os.getpid()), *deploy_argv(lab, topology)]
    with _running(argv, {**os.environ, **environment(lab)}) as process, _ended_after(process, _DEPLOY_S) as late:
        for line in _lines(process):
            said.append(line)
            if _STEP.search(line):
                step()
        code = process.wait()
    if late.is_set():
        why = f"did not end within {_DEPLOY_S:g} s; it said last: {said[-1].strip() if said else 'nothing'}"
        hint = "a command in a node's `exec` has to end: start what lasts in the background, its output in a file"
        raise MachineError(Problem("", f"containerlab deploy of {lab}", why, hint))
    raise_failures(lab, topology, code, said)


@contextmanager
def _running(argv: Sequence[str], env: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A command whose output is read as it comes; whatever leaves the block, it has ended then.

    In a session of its own, so that Ctrl-C comes to it once, from us, as a request to take down what it made.
    """
    try:
        process = subprocess.Popen(
            list(argv), env=dict(env), text=True, errors="replace", start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
    except OSError as error:
        raise trouble(error, argv[0]) from None
    # Its table of containers is nothing to us, but a full pipe would stop it.
    drain = threading.Thread(target=lambda: process.stdout and process.stdout.read(), daemon=True)
    drain.start()
    try:
        yield process
    finally:
        _end(process)
        drain.join(1)


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()


@contextmanager
def _ended_after(process: subprocess.Popen[str], seconds: float) -> Iterator[threading.Event]:
    """End the process when the block takes longer than this; the event is set then."""
    late = threading.Event()

    def too_late() -> None:
        late.set()
        _end(process)

    clock = threading.Timer(seconds, too_late)
    clock.daemon = True
    clock.start()
    try:
        yield late
    finally:
        clock.cancel()


def _lines(process: subprocess.Popen[str]) -> Iterator[str]:
    for line in process.stderr or ():
        yield _COLOUR.sub("", line.rstrip("\n"))


def raise_failures(lab: str, topology: Path, code: int, said: Sequence[str]) -> None:
    """MachineError for commands of nodes that failed, and for a deployment that did."""
    problems = _failed_commands(lab, said)
    if code != 0:
        told = [match[1] for line in said if (match := _TELLS.search(line)) and "Failed to execute" not in line]
        problems.append(_deploy_problem(lab, topology, code, told or [_last_words(said)]))
    if problems:
        rest = len(problems) - _SHOWN
        more = [Problem("", f"and {rest} more", "like these")] if rest > 0 else []
        raise MachineError(*problems[:_SHOWN], *more)


def _last_words(said: Sequence[str]) -> str:
    """What stands below the heading `ERROR`, whose lines are broken to fit a terminal; else the last lines."""
    at = next((i for i, line in enumerate(said) if line.strip() == "ERROR"), len(said) - 4)
    return " ".join(line.strip() for line in said[at + 1 :] if line.strip())


def _failed_commands(lab: str, said: Sequence[str]) -> list[Problem]:
    """One problem for each command that a node could not run, with what it printed: errors before output."""
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
        problems.append(Problem(node, command, why))
    return problems


def _words(lines: Iterable[str]) -> str:
    found = [match[1].strip('" ') for line in lines if (match := _PRINTED.match(line)) and match[1].strip('" ')]
    return "; ".join(found[:3])


def _deploy_problem(lab: str, topology: Path, code: int, told: Sequence[str]) -> Problem:
    """What containerlab said in the end, with a hint where it is something known."""
    why = "; ".join(dict.fromkeys(line.strip() for line in told[-3:])) or f"it ended with exit code {code}"
    # What was deployed goes with the lab that did not come up.
    hint = (
        f"./inv render FABRIC --out DIR, then containerlab deploy -t DIR/{topology.name} --log-level debug, says more"
    )
    for pattern, known in _KNOWN.items():
        if re.search(pattern, why, re.IGNORECASE):
            hint = known.format(lab=lab)
    return Problem("", f"containerlab deploy of {lab}", f"failed: {why}", hint)
