"""Load a compiled object by ctypes, with the types of its functions."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from heddle.base.problems import MachineError

Signatures = Mapping[str, tuple[Any, tuple[Any, ...]]]  # function -> its result, its arguments


def load(path: Path, signatures: Signatures) -> ctypes.CDLL | str:
    """The object, or the reason why it cannot be used."""
    try:
        code = ctypes.CDLL(str(path), use_errno=True)
        for name, (result, arguments) in signatures.items():
            function = getattr(code, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        return f"{path.name} cannot be loaded: {error}"
    return code


def load_committed(
    path_for: Callable[[str], Path], signatures: Signatures, same: Callable[[ctypes.CDLL], bool]
) -> ctypes.CDLL | str:
    """A committed object for this kind of processor, or the reason why it cannot be used here.

    path_for: kind of processor -> its path, or MachineError. same: whether it belongs to this version of Heddle.
    """
    try:
        path = path_for(platform.machine())
    except MachineError:
        return f"no compiled object for {platform.machine()}"
    code = load(path, signatures)
    if isinstance(code, str) or same(code):
        return code
    return f"{path.name} belongs to another version of Heddle"
