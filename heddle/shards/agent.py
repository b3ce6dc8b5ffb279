"""The agent of a shard: `python -m heddle.shards.agent`. It does what its coordinator asks, where the nodes are.

In:  a line of JSON for each call: the operation, the lab, arguments, and the lab's record.
Out: a line for each event, and one with the result or the error. It ends with its standard input.
It calls only functions that are marked by `spread` (heddle/lab/spread.py), those of the modules in OPEN, and those that
plugins register for it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

from heddle.base import state, values
from heddle.base.events import Observer
from heddle.base.plugins import parts
from heddle.base.problems import HeddleError, InputError, Problem
from heddle.lab.opening import open_lab
from heddle.lab.spread import operation
from heddle.runtimes.shardcalls import KIND, LIVE, OBSERVER, OPEN


class Told(Observer):
    """Passes lines for the user to the coordinator. Steps are those of the coordinator."""

    def __init__(self, answers: _Answers) -> None:
        self._answers = answers

    def say(self, text: str) -> None:
        self._answers.write({"event": "say", "args": [text]})

    def warn(self, text: str) -> None:
        self._answers.write({"event": "warn", "args": [text]})

    def event(self, name: str, value: Any) -> None:
        """Call this method of the coordinator's observer."""
        self._answers.write({"event": name, "args": [values.dump(value)]})


class _Answers:
    """The stream to the coordinator. Whatever else is printed goes to standard error."""

    def __init__(self) -> None:
        self.number = 0  # of the call that is answered
        self._stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def write(self, answer: Mapping[str, Any]) -> None:
        """One line."""
        self._stream.write(json.dumps({**answer, "number": self.number}, separators=(",", ":")) + "\n")
        self._stream.flush()


def main() -> int:
    """Answer calls until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the coordinator ends it
    answers = _Answers()
    told = Told(answers)
    for line in sys.stdin:
        if not line.strip():  # a sign of life (plugins/experiments/inpod.py)
            continue
        try:
            request = json.loads(line)
            answers.number = request["number"]
            answers.write({"result": values.dump(_call(request, told))})
        except HeddleError as error:
            rows = [[each.where, each.what, each.why, each.hint] for each in error.problems]
            answers.write({"error": type(error).__name__, "problems": rows})
        except BrokenPipeError:
            return 1
        except Exception:  # a defect: the coordinator shows it as its own
            answers.write({"error": "defect", "text": traceback.format_exc()})
    return 0


def _call(request: Mapping[str, Any], told: Told) -> Any:
    module, _, name = request["call"].partition(":")
    args = [told if each == OBSERVER else values.load(each) for each in request["args"]]
    kwargs = {key: told if each == OBSERVER else values.load(each) for key, each in request["kwargs"].items()}
    if (part := parts(KIND).get(request["call"])) is not None:
        return part.load()(*args, **kwargs)
    if not values.is_module(module):
        raise InputError(Problem("", request["call"], "is not an operation"))
    found: Any = import_module(module)
    for word in name.split("."):
        found = getattr(found, word)
    if module in OPEN and not name.startswith("_"):
        return found(*args, **kwargs)
    function = operation(found)
    if function is None:
        raise InputError(Problem("", request["call"], "is not an operation"))
    _keep(request["lab"], request["live"])
    return function(open_lab(request["lab"]), *args, **kwargs)


def _keep(lab: str, live: Mapping[str, Any]) -> None:
    """Write what the coordinator's record has of live changes into the shard's own."""
    record = state.read_record(lab)
    if record is not None and any(getattr(record, key) != live[key] for key in LIVE):
        state.write_record(replace(record, **{key: live[key] for key in LIVE}))


if __name__ == "__main__":
    sys.exit(main())
