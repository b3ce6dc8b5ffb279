"""The verbs of Heddle, in the order in which `./inv --list` shows them. Each is in heddle/cli/NAME_verb.py."""

from __future__ import annotations

import sys

# ruff: noqa: F401
# mypy: implicit-reexport
# isort: off
from heddle.cli.demo_verb import demo
from heddle.cli.tour_verb import tour
from heddle.cli.doctor_verb import doctor
from heddle.cli.up_verb import up
from heddle.cli.status_verb import status
from heddle.cli.inspect_verb import inspect
from heddle.cli.exec_verb import exec_
from heddle.cli.launch_verb import launch
from heddle.cli.capture_verb import capture
from heddle.cli.run_verb import run
from heddle.cli.hashing_verb import hashing
from heddle.cli.paths_verb import paths
from heddle.cli.validate_verb import validate
from heddle.cli.render_verb import render
from heddle.cli.graph_verb import graph
from heddle.cli.down_verb import down
from heddle.cli.dashboard_verb import dashboard
from heddle.cli.fault_verb import fault
from heddle.cli.plot_verb import plot
from heddle.cli.queues_verb import queues
from heddle.cli.report_verb import compare, report
from heddle.cli.runs_verb import runs
from heddle.cli.mcp_verb import mcp
from heddle.cli.explain_verb import explain
from heddle.cli.lab_verb import lab_units
from heddle.cli.image_verb import image
from heddle.cli.setup_verb import setup
from heddle.cli.test_verb import test
from heddle.cli.vm_verb import vm
from heddle.cli.bench_verb import bench
from heddle.cli.lint_verb import lint
from heddle.cli.program import main, typed_to_invoke

typed = typed_to_invoke()
if typed is not None:  # `invoke up tiny`, `inv up tiny`: the words after the verb mean the same as after ./inv
    sys.argv[1:] = typed
if __name__ == "__main__" or typed is not None:
    sys.exit(main(globals()))
