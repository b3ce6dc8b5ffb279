"""The commands of docs/recipes.md, as a user runs them: a shell runs the blocks below a heading to their end.

said = followed("Two namespaces over TCP", lab="tiny-7", blue="hdblue", red="hdred")
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from typing import Final

from tests.pages import ROOT, blocks

PAGE: Final = "docs/recipes.md"
_TIMEOUT_S: Final = 600


def script(heading: str, *, running: str = "", **names: str) -> str:
    """The commands below a heading. names: word of the page -> what stands for it here.

    running: the lab that is up already, so that the page's own does not begin.
    """
    text = "".join(block.text for block in blocks(PAGE, "sh") if block.heading == heading).replace("\\\n", " ")
    assert text, heading
    if running:
        text = re.sub(r"^\./inv up .*\n", "", text, flags=re.MULTILINE)
        text = re.sub(r"^(\./inv \w+)", rf"\1 --lab {running}", text, flags=re.MULTILINE)
    for word, own in names.items():
        text = re.sub(rf"(?<![\w-]){word}(?![\w-])", own, text)
    return text


def followed(text: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """What the commands print, stderr included, up to the first one that fails."""
    return subprocess.run(
        ["sh", "-eu"], input=text, cwd=ROOT, env={**os.environ, "NO_COLOR": "1", **(environment or {})}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_TIMEOUT_S, check=False,
    )  # fmt: skip
