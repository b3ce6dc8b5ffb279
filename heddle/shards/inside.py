"""Run a command in a node of this shard: `python -m heddle.shards.inside LAB NODE COMMAND ...`."""

from __future__ import annotations

import os
import sys

from heddle.base.problems import HeddleError
from heddle.lab.opening import open_lab


def main(lab: str, node: str, *argv: str) -> int:
    """Become the command. Returns only an error's exit code."""
    try:
        command = open_lab(lab).command(node, argv)
        os.execvp(command[0], command)  # noqa: S606  (no shell; the words are the user's own)
    except HeddleError as error:
        for problem in error.problems:
            print(problem, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
