"""The environment variables that users may set: docs/exit-codes-and-variables.md lists them from here.

Each is read by the module that it concerns. HEDDLE_PROGRAM, HEDDLE_PLACE, HEDDLE_FILES and HEDDLE_FILES_ONLY are not
among them: Heddle sets these for its own processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable. unset: what counts when it is not set; both are texts for people."""

    name: str
    sets: str
    unset: str


VARIABLES: Final = (
    Variable(
        "HEDDLE_STATE_DIR", "directory of labs and runs", "`$XDG_STATE_HOME/heddle`, else `~/.local/state/heddle`"
    ),
    Variable(
        "HEDDLE_CACHE_DIR",
        "directory of images of virtual machines",
        "`$XDG_CACHE_HOME/heddle`, else `~/.cache/heddle`",
    ),
    Variable(
        "HEDDLE_CONFIG",
        "config file with the key `place`; an empty value means none",
        "`$XDG_CONFIG_HOME/heddle/config.yml`, else `~/.config/heddle/config.yml`",
    ),
    Variable("HEDDLE_KEEP_RUNS", "how many runs a lab keeps", "50"),
    Variable("HEDDLE_KEEP_BYTES", "size of all runs that a lab keeps", "`200MB`"),
    Variable(
        "HEDDLE_PYTHON", "the interpreter of which `./inv` makes `.venv`", "`python3`, else a newer name in `PATH`"
    ),
    Variable(
        "HEDDLE_VENV",
        "an environment with the packages of `requirements.lock`: `./inv` uses it, and never changes it",
        "`.venv` in the checkout",
    ),
    Variable("HEDDLE_CONTAINERLAB", "path of the program containerlab", "the one that `setup` installed, or in `PATH`"),
    Variable("KUBECONFIG", "files with the contexts of Kubernetes", "`~/.kube/config`"),
    Variable("HEDDLE_DEBUG", "print the traceback of a defect, for any value", "a file with the traceback is written"),
    Variable("CI", "`true`: install missing packages without a question", "Heddle asks"),
    Variable("NO_COLOR", "print without colours, for any value", "colours on a terminal"),
)
