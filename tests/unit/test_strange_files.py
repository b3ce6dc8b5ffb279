"""Files of other people: FIFOs, devices, and texts that are made to take time or to end a program."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from heddle.base.problems import InputError
from heddle.endpoints.workloadfile import files_of, load_workload
from heddle.fabric.fabricfile import load_fabric
from heddle.lab.imported.choose import blueprint_of, companions
from heddle.lab.imported.grammar import LONGEST_LINE, MOST_BYTES
from heddle.offline.loads import traffic_of
from heddle.runs.files import UnreadableError, read_arrays, read_object
from heddle_plugins.packets.capturefile import open_capture
from tests.answers import Answers

BOUND_S = 20.0  # on a busy machine; each took minutes, or did not end


def topology(path: Path, node: str = "{kind: linux}", more: str = "") -> str:
    path.write_text(f"name: x\ntopology:\n  nodes:\n    a: {node}\n    b: {{kind: linux}}\n{more}")
    return str(path)


def run_plan(name: str) -> None:
    traffic_of(load_fabric("tiny").fabric, load_workload(f"{name},qps=1").workload)


def bound(name: str, runtime: str) -> None:
    node = f"{{kind: linux, binds: [{name}:/etc/frr/frr.conf]}}"
    blueprint_of(topology(Path(name).with_name("t.clab.yml"), node), runtime)


@pytest.mark.parametrize("kind", ["fifo", "device"])
@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("x.clab.yml", lambda name: blueprint_of(name, "netns")),
        ("x.yml", load_fabric),
        ("x.yml", load_workload),
        ("x.csv", run_plan),
        ("x.pcap", lambda name: open_capture(Path(name), name)),
        ("run.json", lambda name: read_object(Path(name))),
        ("rates.npz", lambda name: read_arrays(Path(name), 1, {})),
        ("frr.conf", lambda name: bound(name, "netns")),
        ("frr.conf", lambda name: bound(name, "containerlab")),
    ],
)  # fmt: skip
def test_only_regular_files_are_read(tmp_path: Path, name: str, read: Callable[[str], object], kind: str) -> None:
    path = tmp_path / name
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    ended = threading.Event()

    def write() -> None:  # without it, a reader of a FIFO would never return
        if not ended.wait(BOUND_S) and kind == "fifo":
            os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))

    threading.Thread(target=write, daemon=True).start()
    with pytest.raises((InputError, UnreadableError, OSError), match=r"is not a regular file|is a socket or device"):
        read(str(path))
    assert companions(path) == [] and files_of(str(path)) == [str(path)]
    ended.set()


def test_texts_that_no_program_takes_are_refused_by_line(tmp_path: Path, answers: Answers) -> None:
    answers(lambda text: blueprint_of(topology(tmp_path / "x.clab.yml", text), "netns"))
    with pytest.raises(InputError, match="is longer than 32,768 characters") as error:
        blueprint_of(topology(tmp_path / "x.clab.yml", f"{{kind: linux, exec: [{'x' * (LONGEST_LINE + 1)}]}}"), "netns")
    assert max(map(len, str(error.value).splitlines())) < 300


@pytest.mark.parametrize(("key", "value"), [(key, v) for key in ("mtu", "rate") for v in ("²", "9" * 5000, "-1")])
def test_numbers_of_links_are_digits_within_bounds(tmp_path: Path, key: str, value: str) -> None:
    given = f"mtu: {value}" if key == "mtu" else f"vars: {{rate_bps: {value}}}"
    more = f'  links:\n    - {{endpoints: ["a:eth1", "b:eth1"], {given}}}\n'
    with pytest.raises(InputError, match="is not a number from 1,") as error:
        blueprint_of(topology(tmp_path / "x.clab.yml", more=more), "netns")
    assert len(str(error.value)) < 300


@pytest.mark.long
def test_reading_a_topology_takes_bounded_time(tmp_path: Path) -> None:
    def refused(text: str, why: str) -> None:
        (tmp_path / "x.clab.yml").write_text(text)
        start = time.monotonic()
        with pytest.raises(InputError, match=why):
            blueprint_of(str(tmp_path / "x.clab.yml"), "netns")
        assert time.monotonic() - start < BOUND_S

    head = "name: x\ntopology:\n  defaults: {kind: linux, exec: [%s]}\n  nodes:\n"
    refused("#" * (MOST_BYTES + 1), "is larger than 1024 KiB")
    many = "".join(f"    n{number}: {{}}\n" for number in range(3000))
    refused(head % ", ".join(f"true {number}" for number in range(3000)) + many, "has more than 400,000 values")
    ends = "".join(f'    - endpoints: ["n{number}:e", "m{number}:e"]\n' for number in range(3000))
    refused(head % "" + many + "  links:\n" + ends, "was not read: too many problems")
    # Blank lines, and a script with one long line.
    (tmp_path / "frr.conf").write_text("\n" * (MOST_BYTES - 20) + "interface eth1\n")
    (tmp_path / "x.sh").write_text("x" * MOST_BYTES)
    node = "{kind: linux, exec: [sh /x.sh], binds: [frr.conf:/etc/frr/frr.conf, frr.conf:/etc/frr/daemons, x.sh:/x.sh]}"
    start = time.monotonic()
    blueprint_of(topology(tmp_path / "y.clab.yml", node), "containerlab")
    assert time.monotonic() - start < BOUND_S
