"""The C library, with errno: system calls that Python has no function for."""

from __future__ import annotations

import ctypes
from typing import Final

libc: Final = ctypes.CDLL(None, use_errno=True)
