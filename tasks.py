"""The verbs of Heddle, in the order in which `./inv --list` shows them. heddle/cli/*_verb*.py has them."""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path

# ruff: noqa: F401
# mypy: implicit-reexport
# isort: off
if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C during these imports; cli/endings.py restores it
if os.geteuid() == 0 and Path(__file__).stat().st_uid:  # the user could not remove compiled modules of root
    own = str(Path("~root/.cache/heddle/pycache").expanduser())
    sys.pycache_prefix = os.environ.setdefault("PYTHONPYCACHEPREFIX", own)
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # it reads the metadata of every distribution for them
from heddle.cli.machine_verbs import doctor
from heddle.cli.tour_verb import demo, tour
from heddle.cli.machine_verbs import image, setup
from heddle.cli.fabric_verbs import up, status, inspect
from heddle.cli.exec_verb import exec_
from heddle.cli.fabric_verbs import validate, down, render
from heddle.cli.picture_verbs import graph
from heddle.cli.run_verb import run, perf
from heddle.cli.tuner_verb import tuner
from heddle.cli.exec_verb import launch
from heddle.cli.fault_verb import fault
from heddle.cli.capture_verb import capture
from heddle.cli.paths_verb import paths
from heddle.cli.paths_verb import hashing
from heddle.cli.predict_verb import predict
from heddle.cli.queues_verb import queues
from heddle.cli.picture_verbs import plot
from heddle.cli.runs_verb import compare, export, report, runs
from heddle.cli.explain_verb import explain
from heddle.cli.serving_verbs import mcp
from heddle.cli.machine_verbs import plugin
from heddle.cli.checkout_verbs import test
from heddle.cli.checkout_verbs import bench, docs, lint, soak
from heddle.cli.program import commands_in, main, typed_to_invoke

gc.set_threshold(100_000, 50, 1000)  # a large fabric is a million objects without cycles: do not look at them all again
typed = typed_to_invoke()
if typed is not None:  # `invoke up tiny`, `inv up tiny`: the words after the verb mean the same as after ./inv
    sys.argv[1:] = typed
if __name__ == "__main__" or typed is not None:
    sys.exit(main(globals()))
if "invoke" in sys.modules:  # `invoke --list`, `invoke --help up`: it looks for tasks
    globals().update({f"task of {name}": command.task() for name, command in commands_in(globals()).items()})
