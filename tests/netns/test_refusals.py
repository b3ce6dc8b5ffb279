"""Words that a verb refuses for a running lab: each paragraph of a golden file is a command, and what it says."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

from heddle.lab.faults import record
from heddle.lab.lab import Lab
from heddle.lab.linkstate import State, state_of
from heddle.lab.rehash import wanted
from heddle.lab.thresholds import own_settings
from heddle.switch.queues.cells import LabQueues
from tests.conftest import GOLDEN
from tests.readings import read_hashing
from tests.typed import typed

FILE = "runs/refused.log"


def test_wrong_words_are_explained_and_change_nothing(tiny: Lab, golden: Callable[[str, str], None]) -> None:
    def now() -> object:
        with LabQueues.pinned(tiny.fabric) as live:
            queues = own_settings(tiny), live.policies().tobytes(), live.half
        return queues, {name: read_hashing(tiny.name, tiny.handle(name)) for name in wanted(tiny)}

    before, said = now(), []
    for command in re.findall(r"^\./inv .*$", (GOLDEN / FILE).read_text(encoding="utf-8"), re.MULTILINE):
        done = typed(*shlex.split(re.sub(r"\btiny\b", tiny.name, command))[1:])
        assert (done.returncode, done.stdout) == (2, ""), command
        said.append(f"{command}\n{done.stderr}".replace(tiny.name, "tiny"))
    golden(FILE, "\n".join(said))
    assert now() == before
    assert state_of(tiny) == State((), ()) and record.read(tiny.dir) == ()
