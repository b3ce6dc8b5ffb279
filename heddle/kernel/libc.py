"""The C library, with errno, for system calls without a Python function."""

from __future__ import annotations

import ctypes
from typing import Final

libc: Final = ctypes.CDLL(None, use_errno=True)
