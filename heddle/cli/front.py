"""The console script `heddle`: runs the verbs of tasks.py of the installed wheel or checkout."""

from __future__ import annotations

import importlib.util
import os
import sys
from types import ModuleType
from typing import Final

from heddle.base import progname, resources
from heddle.cli import program

_MODULE: Final = "heddle_tasks"


def main() -> int:
    """Run the verb that was typed and return the exit code, as `./inv` does in a checkout."""
    os.environ.setdefault(progname.VARIABLE, progname.INSTALLED)
    return program.main(vars(tasks()))


def tasks() -> ModuleType:
    """tasks.py as a module."""
    if _MODULE in sys.modules:
        return sys.modules[_MODULE]
    path = resources.HERE.verbs
    found = importlib.util.spec_from_file_location(_MODULE, path)
    assert found is not None and found.loader is not None  # noqa: S101  (it is a .py file)
    module = importlib.util.module_from_spec(found)
    sys.modules[_MODULE] = module
    found.loader.exec_module(module)
    return module
