"""Run the learner's test on two fabrics, in a directory of its own: on one it must fail, on the other pass."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import heddle
from heddle.base.problems import MachineError, Problem
from heddle.host.preflight import frr_dir
from heddle_plugins.workshop.observe import NotDoneError, Seen, UnitLab

TEST: Final = Path("test_fabric.py")  # in the directory where the learner works
FABRIC: Final = Path(__file__).with_name("fabric.yml")
_SECONDS: Final = 120  # a test takes 5 seconds on a quiet machine, and over 60 on one that is busy


def on_flow(lab: UnitLab) -> Seen:
    """The verdict of the learner's test on a fabric with ECMP by 5-tuples."""
    return _verdict("flow", _runtime(lab))


def on_e_ecmp(lab: UnitLab) -> Seen:
    """The verdict of the learner's test on a fabric with E-ECMP."""
    return _verdict("e-ecmp", _runtime(lab))


def _runtime(lab: UnitLab) -> str:
    """Where the labs of the test run: in namespaces where this machine has FRR, which is quicker, else as the unit."""
    return "netns" if frr_dir() is not None else lab.lab.runtime.name


def _verdict(mode: str, runtime: str) -> Seen:
    """Facts: verdict (passed, failed, error, skipped, timeout, none), and the number of tests."""
    if find_spec("pytest") is None:
        raise MachineError(Problem("", "pytest", "is not installed", "install it: python -m pip install pytest"))
    if not TEST.is_file():
        raise NotDoneError(f"there is no {TEST} in this directory")
    with tempfile.TemporaryDirectory(prefix="heddle-unit14-") as made:
        there = Path(made)
        (there / TEST.name).write_text(TEST.read_text(encoding="utf-8"), encoding="utf-8")
        text = FABRIC.read_text(encoding="utf-8").replace("ecmp: flow", f"ecmp: {mode}")
        (there / "my-fabric.yml").write_text(text, encoding="utf-8")
        report = there / "junit.xml"
        argv = [
            sys.executable, "-m", "pytest", "-q", "-p", "heddle.testing.plugin", "-p", "no:cacheprovider",
            f"--heddle-runtime={runtime}", f"--rootdir={there}", f"--junitxml={report}", "-c", os.devnull, TEST.name,
        ]  # fmt: skip
        paths = [str(Path(heddle.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            subprocess.run(argv, cwd=there, env=env, capture_output=True, timeout=_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return Seen({"verdict": "timeout", "tests": 0}, f"{TEST} on a fabric with {mode}")
        word, count = _read(report)
    return Seen({"verdict": word, "tests": count}, f"{TEST} on a fabric with {mode}")


def _read(report: Path) -> tuple[str, int]:
    """The worst verdict of all tests, and their number. A failure that is no assertion is an error of the test."""
    if not report.is_file():
        return "error", 0
    cases = list(ET.parse(report).getroot().iter("testcase"))  # noqa: S314 - pytest has just written it
    failures = [each.get("message", "") for case in cases for each in case.iter("failure")]
    if any(case.find("error") is not None for case in cases) or any("AssertionError" not in each for each in failures):
        return "error", len(cases)
    if failures:
        return "failed", len(cases)
    if any(case.find("skipped") is not None for case in cases):
        return "skipped", len(cases)
    return ("passed" if cases else "none"), len(cases)
