"""Load a compiled object by ctypes, with the types of its functions."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
