"""A kind of link fault is one field of LinkFault: keys of the file, flags, words, counters and rows follow from it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).parents[2]
# What a developer would write: a kind by the program, and a kind by netem.
ROWS: Final = """
    burst: float = _share("bursts", "share of packets at which a burst is lost: 1/256")
    slot_ns: int = _time("packets leave in slots of this length: 1us (netem)", netem="slot {}", reads="slot.min-delay")
"""
# The table with these rows, in the place of the module; then all that follows from it.
PROGRAM: Final = """
import json, sys, types
from pathlib import Path

path, rows = Path("heddle/spec/impairments.py"), sys.argv[1]
end = '    def __bool__(self) -> bool:\\n        \\"\\"\\"Whether there is any fault.'
text = path.read_text()
assert text.count(end) == 1
module = sys.modules["heddle.spec.impairments"] = types.ModuleType("heddle.spec.impairments")
exec(compile(text.replace(end, rows + "\\n" + end), path, "exec"), module.__dict__)

from heddle.cli.fault_verb import fault
from heddle.fabric.fabricfile import load_fabric
from heddle.spec.impairments import LinkFault, parse_run_fault
from tests.objects import bpf as build
from heddle.switch.links.portfaults import file_faults, line_of
from heddle.switch.queues.cells import FAULT
from heddle.views.labtext import faults_text
from heddle.lab.faults.packets import Packets, PortFault

tiny = load_fabric("tiny", overrides=["link.burst=1/256"]).fabric
given = LinkFault(burst=1 / 256, slot_ns=1000)
port = tiny.by_name["rtsw1"].ports[0]
counts = dict.fromkeys((*FAULT.names, "waiting"), 7)
print(json.dumps({
    "flags": {each.flag: each.option.help for each in fault.verb.parameters},
    "file": file_faults(tiny)["host1:eth1"].to_json(),
    "typed": Packets().read(parse_run_fault("rtsw1:eth1,burst=1/256,slot=1us", {}).values, str) == given.to_json(),
    "words": given.text(4000),
    "netem": line_of(port, 7, given, 4000).netem(),
    "fields": {name: FAULT.fields[name][1] for name in FAULT.names},
    "structs": build.FAULT_FIELDS,
    "table": faults_text([PortFault("rtsw1:eth1", "ctsw1:eth1", given, "fault", counts)], 4000, "").split("\\n")[0],
}))
"""


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    words = [sys.executable, "-c", PROGRAM, ROWS]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


def test_a_new_kind_has_its_flag_and_its_key(found: dict[str, Any]) -> None:
    assert found["flags"]["--burst"] == "share of packets at which a burst is lost: 1/256"
    assert found["flags"]["--slot"].startswith("packets leave in slots")
    assert found["file"] == {"burst": 1 / 256}
    assert found["typed"]


def test_a_new_kind_has_its_words_and_its_column(found: dict[str, Any]) -> None:
    assert found["words"] == "1/256 bursts, slot 1us (4ms here)"
    assert found["table"].split() == [
        "port", "to", "fault", "packets", "lost", "corrupted", "duplicated", "bursts", "delayed", "waiting",
    ]  # fmt: skip


def test_a_new_kind_has_its_parameter_of_netem_or_its_place_in_the_row_of_the_program(found: dict[str, Any]) -> None:
    assert found["netem"] == "netem limit 1000000 slot 4000000ns rate 100gbit"
    assert found["structs"]["FAULT_CHANCES"] == "__u32 loss;__u32 corrupt;__u32 duplicate;__u32 burst;"
    fields = found["fields"]
    assert (fields["burst"], fields["line"]) == (12, 16)
    assert (fields["packets"], fields["lost"]) == (24, 32), "8 bytes are aligned as in C"
