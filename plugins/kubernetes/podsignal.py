"""Send a signal to a command in this pod: `python -m heddle_plugins.kubernetes.podsignal TOKEN NUMBER`.

Exec has no signals. Each command gets a token in its environment, by which it and all that it has started are found.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

TOKEN: Final = "SHARD_EXEC"  # noqa: S105  (the name of a variable)


def main(token: str, number: int) -> int:
    """Signal every process with the token, as a terminal signals its foreground processes; 1 when there is none."""
    wanted, found = f"{TOKEN}={token}".encode(), 0
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # ended meanwhile
            if wanted in path.read_bytes().split(b"\0") and int(path.parent.name) != os.getpid():
                os.kill(int(path.parent.name), number)
                found += 1
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
