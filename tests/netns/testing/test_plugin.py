"""The pytest plugin in a user's hands: sessions of pytest in a directory of their own, with labs that run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from heddle.lab import lifecycle as life
from heddle_plugins.testing.pool import claims
from tests.machine import patience, until
from tests.marks import long
from tests.pages import blocks
from tests.userplace import PLUGIN, UserPlace, section
from tests.wheels import install

Leftovers = Callable[[str], list[str]]

(TEN_LINES,) = (block.text for block in blocks("docs/for-ci.md", "python"))
(README,) = (block.text for block in blocks("README.md", "python"))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UserPlace:
    """What is asked about labs here is asked about those of the place."""
    found = UserPlace.below(tmp_path)
    monkeypatch.setenv("HEDDLE_STATE_DIR", str(found.state))
    return found


def names(place: UserPlace, file: str = "names") -> list[str]:
    return (place.path / file).read_text().split()


def test_ten_lines_of_the_pages_pass_and_fail_as_shown_and_leave_nothing(
    place: UserPlace, leftovers: Leftovers
) -> None:
    """With E-ECMP the ten lines pass. With a hash over the 5-tuple, those of the README fail, and print its failure."""
    assert all(len([line for line in each.splitlines() if line.strip()]) <= 10 for each in (TEN_LINES, README))
    place.write(test_mine=TEN_LINES, test_readme=README, conftest=NOTE_NAMES)
    done = place.pytest(*PLUGIN, "-q", "-rs", "-W", "error")
    assert (done.returncode, "1 failed, 1 passed" in done.stdout) == (1, True), done.stdout + done.stderr
    (failure,) = (block.text for block in blocks("README.md", "text") if "AssertionError" in block.text)
    said = section(done.stdout, "FAILURES")
    assert failure in said and re.search(r"^test_readme\.py:\d+: AssertionError$", said, re.MULTILINE)
    assert [left for each in set(names(place)) for left in leftovers(each)] == []
    assert not [each for each in claims() if each.state_dir == str(place.state)]


@pytest.mark.clab
def test_the_lab_of_a_test_runs_in_containers(place: UserPlace, leftovers: Leftovers, engine: None) -> None:
    fabric = '@pytest.mark.fabric("tiny", racks=1, ctsw=1, hosts_per_rack=1)'
    test = f'{fabric}\ndef test_mine(heddle_lab): assert heddle_lab.runtime.name == "containerlab"\n'
    place.write(test_mine=f"import pytest\n{test}", conftest=NOTE_NAMES)
    done = place.pytest(*PLUGIN, "-q", "--heddle-runtime=containerlab", "--heddle-no-skip")
    assert done.returncode == 0, done.stdout + done.stderr
    assert leftovers(*names(place)) == []


# The user's own fixture builds on the plugin's.
NOTE_NAMES = """
import pathlib, pytest

@pytest.fixture
def heddle_lab(heddle_lab):
    yield heddle_lab

@pytest.fixture(autouse=True)
def note(request):
    lab = request.getfixturevalue("heddle_lab")
    with (pathlib.Path(__file__).parent / "names").open("a") as file:
        print(lab.name, file=file)
"""

SHARED = """
import os, signal, subprocess, pytest
from heddle.checks.validate import validate
from heddle.lab.linkstate import state_of
from heddle.lab.outages import drain, link_down
from heddle.lab.rehash import live_hashing, set_hashing
from heddle.lab.thresholds import own_queues, set_queues
from heddle.runs.store import has_run
from heddle_plugins.testing import assert_converged
from heddle_plugins.testing.pool import processes_of

pytestmark = pytest.mark.fabric("tiny")


def test_1_changes_much(heddle_lab, heddle_run):
    set_hashing(heddle_lab, "e-ecmp")
    set_queues(heddle_lab, ["ecn.kmax=200KB"])
    assert heddle_run(sizes="64K", iters=1).id == "0001"
    link_down(heddle_lab, "rtsw1:eth3")
    drain(heddle_lab, "ctsw2")
    assert_converged(heddle_lab, degraded=True)


def test_2_finds_nothing_of_it(heddle_lab, heddle_run, heddle_queues):
    assert state_of(heddle_lab).text() == ""
    assert (live_hashing(heddle_lab), own_queues(heddle_lab)) == ({}, {})
    assert not has_run(heddle_lab)
    assert not [row for row in heddle_queues().rows if not row.quiet]
    assert not [row for row in heddle_queues().rows if row.traffic_class == 3 and row.packets]
    assert not [each.detail for each in validate(heddle_lab) if not each.ok]
    assert_converged(heddle_lab, within=1)
    assert heddle_run(sizes="64K", iters=1).id == "0001"


def test_3_leaves_a_process(heddle_lab):
    subprocess.Popen(["ip", "netns", "exec", heddle_lab.handle("host1").netns.name, "sleep", "601"])
    while not [each for each in processes_of(heddle_lab) if "(sleep 601)" in each.text()]:
        pass


def test_4_damages_its_lab(heddle_lab):
    assert not [each.text() for each in processes_of(heddle_lab) if "601" in each.text()]
    zebra = next(each for each in processes_of(heddle_lab) if "zebra" in each.command() and each.node == "rtsw1")
    os.kill(zebra.pid, signal.SIGKILL)
    while zebra in processes_of(heddle_lab):  # the kernel takes some time to free its memory first
        pass


def test_5_gets_another_lab(heddle_lab):
    assert_converged(heddle_lab, within=1)


@pytest.mark.fabric("tiny", racks=1)
def test_6_has_another_fabric(heddle_lab):
    assert not os.path.exists(f"/run/netns/heddle-{open('names').read().split()[-2]}-rtsw1"), "there may be one lab"
"""


@pytest.mark.deep
@pytest.mark.long
def test_tests_share_a_lab_that_is_reset_between_them(place: UserPlace, leftovers: Leftovers) -> None:
    place.write(test_shared=SHARED, conftest=NOTE_NAMES)
    done = place.pytest(*PLUGIN, "-q", "--heddle-labs=1")
    assert done.returncode == 0, done.stdout + done.stderr
    one, two, three, four, five, six = names(place)
    assert one == two == three == four != five != six
    assert [leftovers(each) for each in (one, five, six)] == [[], [], []]
    warned = [line.strip() for line in section(done.stdout, "warnings summary").splitlines() if "Warning:" in line]
    assert len(warned) == 2, done.stdout
    assert "test_shared.py::test_3_leaves_a_process left process " in warned[0]
    assert warned[0].endswith("in host1 (sleep 601): ended")
    assert (
        "test_shared.py::test_4_damages_its_lab left its lab damaged (1 process of the lab ended, in rtsw1)"
        in (warned[1])
    )


FAILING = """
import pytest
from heddle.lab.outages import link_down
from heddle_plugins.testing import assert_mmr_below

pytestmark = pytest.mark.fabric("tiny")


def test_good(heddle_run):
    heddle_run(sizes="64K", iters=1)


def test_bad(heddle_run, heddle_paths):
    heddle_run(sizes="64K", iters=1)
    assert_mmr_below(heddle_paths(), 0.5)


def test_mistake(heddle_lab):
    link_down(heddle_lab, "rtsw1:eth33")
"""


@pytest.mark.needs("tcpdump")
@pytest.mark.long("10 seconds and more")
def test_a_failed_test_keeps_lab_and_capture_and_prints_how_to_inspect_them(
    place: UserPlace, leftovers: Leftovers
) -> None:
    place.write(test_looks=FAILING, conftest=NOTE_NAMES)
    done = place.pytest(*PLUGIN, "-q", "--heddle-keep", "--heddle-pcap=captured here")
    good, bad, mistake = names(place)
    try:
        assert done.returncode == 1 and "2 failed, 1 passed" in done.stdout, done.stdout + done.stderr
        assert good == bad != mistake
        said = section(done.stdout, "FAILURES")
        assert "E       AssertionError: the MMR of bytes is above 0.5" in said
        assert f"lab {bad}: tiny, runtime netns\nrun 0001 of lab {bad}: all-reduce, 4 ranks, 1 QP\nlook at it: " in said
        assert '>       link_down(heddle_lab, "rtsw1:eth33")' in said
        assert "E       heddle.base.problems.InputError: rtsw1:eth33 is not a port" in said
        assert "faults.py" not in said, "the traceback ends at the test"
        notes = section(done.stdout, "heddle")
        inv = f"HEDDLE_STATE_DIR='{place.state}' ./inv"
        assert (
            f"test_looks.py::test_bad: lab {bad} is left up; look at it: {inv} status {bad}, {inv} paths --lab {bad}"
            in (notes)
        )
        files = sorted(path.name for path in (place.path / "captured here").iterdir())
        assert files == ["test_looks.py--test_bad.pcapng", "test_looks.py--test_mistake.pcapng"]
        dump = subprocess.run(
            ["tcpdump", "-nr", place.path / "captured here" / files[0], "udp", "dst", "port", "4791"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert len(dump.stdout.splitlines()) > 100
        assert leftovers(bad), "it is up"
        assert not [each for each in claims() if each.lab in (bad, mistake)], "no later session removes it"
    finally:
        for name in {bad, mistake}:
            life.down(name, force=True)
    assert (leftovers(bad), leftovers(mistake)) == ([], [])


SLOW = """
import pathlib, time, pytest

@pytest.mark.fabric("tiny", racks=1)
def test_slow(heddle_lab):
    pathlib.Path("new").write_text(heddle_lab.name)
    pathlib.Path("new").rename("up")
    time.sleep(100)
"""


@pytest.mark.deep
def test_a_session_that_is_interrupted_leaves_no_lab(place: UserPlace, leftovers: Leftovers) -> None:
    """By Ctrl-C. SIGTERM: below with workers, and test_pool.py for a lab that a test brought up itself."""
    place.write(test_slow=SLOW)
    session = place.start(*PLUGIN, "-q")
    until((place.path / "up").exists, 240, process=session)
    session.send_signal(signal.SIGINT)
    out, _ = session.communicate(timeout=patience(60))
    assert session.returncode == 2, out
    assert leftovers(*names(place, "up")) == []
    assert not [each for each in claims() if each.pid == session.pid]


@pytest.mark.deep
def test_a_session_that_is_interrupted_while_a_lab_comes_up_leaves_none(place: UserPlace, leftovers: Leftovers) -> None:
    place.write(test_slow=SLOW)
    session = place.start(*PLUGIN, "-q")
    until(lambda: any(each.pid == session.pid for each in claims()), process=session)
    (lab,) = (each.lab for each in claims() if each.pid == session.pid)
    time.sleep(0.3)
    session.send_signal(signal.SIGINT)
    out, _ = session.communicate(timeout=patience(60))
    assert session.returncode == 2, out
    assert leftovers(lab) == []
    assert not [each for each in claims() if each.pid == session.pid]


@pytest.mark.long("10 seconds and more")
def test_the_lab_of_a_session_that_was_killed_goes_with_the_next_one(
    place: UserPlace, leftovers: Leftovers, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.write(test_slow=SLOW)
    session = place.start(*PLUGIN, "-q")
    until((place.path / "up").exists, 240, process=session)
    session.kill()
    session.communicate()
    (lab,) = names(place, "up")
    assert leftovers(lab)
    (place.path / "test_slow.py").unlink()
    place.write(test_next='import pytest\n@pytest.mark.fabric("tiny", racks=1)\ndef test_next(heddle_lab): ...\n')
    elsewhere = UserPlace(place.path, ("env", f"HEDDLE_STATE_DIR={place.path}/elsewhere"))
    done = elsewhere.pytest(*PLUGIN, "-q")
    assert done.returncode == 0, done.stdout + done.stderr
    line = f"lab {lab} was removed: pytest (process {session.pid}) had ended without doing so"
    assert line in section(done.stdout, "heddle")
    assert leftovers(lab) == []


@pytest.mark.deep
@pytest.mark.long
def test_a_failure_with_only_the_wheel_names_the_program(
    wheel: Path, tmp_path: Path, leftovers: Callable[[str], list[str]]
) -> None:
    """Tests that pass with only the wheel: test_example_pipeline.py."""
    made = install(wheel, tmp_path / "the environment")
    place = UserPlace.below(tmp_path, test_mine=TEN_LINES.replace("1.5", "0.1"), conftest=NOTE_NAMES)
    place = replace(place, python=made.python)
    done = place.pytest("-q")
    assert done.returncode == 1, done.stdout + done.stderr
    assert leftovers(names(place)[-1]) == []
    assert "more      heddle paths shows all queue pairs" in done.stdout
    assert "./inv" not in done.stdout


HEAD = "import os, pathlib, subprocess, time, pytest\npytestmark = pytest.mark.fabric('tiny', racks=1)\n"
NOTE = "    pathlib.Path(f'lab-{os.getpid()}').write_text(lab.name)\n"
FIRST = f"{HEAD}def test_a(heddle_lab, heddle_run):\n    lab = heddle_lab\n{NOTE}    heddle_run(sizes='64K', iters=1)\n"
LEFT = f"""{HEAD}
def test_b(heddle_lab):
    lab = heddle_lab
{NOTE}
    subprocess.Popen(["ip", "netns", "exec", lab.handle("host1").netns.name, "sleep", "601"])
    while not subprocess.run(["ip", "netns", "pids", lab.handle("host1").netns.name], capture_output=True).stdout:
        time.sleep(0.02)
"""
KEPT = f"""{HEAD}
def test_c(heddle_lab):
    lab = heddle_lab
{NOTE}
    pathlib.Path("kept").write_text(lab.name)
    assert lab.name == "mine"
"""
SLOW_WORKER = f"{HEAD}def test_slow(heddle_lab):\n    lab = heddle_lab\n{NOTE}    time.sleep(100)\n"


def labs(place: UserPlace) -> dict[int, str]:
    """Worker -> its lab."""
    return {int(path.name.removeprefix("lab-")): path.read_text() for path in place.path.glob("lab-*")}


# `./inv test` itself has two workers, each with a pool of its own.
@pytest.mark.long
def test_workers_have_labs_of_their_own_and_one_report(tmp_path: Path, leftovers: Leftovers) -> None:
    place = UserPlace.below(tmp_path, test_first=FIRST, test_left=LEFT, test_kept=KEPT)
    (place.path / "pytest.ini").write_text("[pytest]\njunit_family = xunit1\n")
    done = place.pytest(*PLUGIN, "-n", "2", "--dist", "loadfile", "--junit-xml=out.xml", "--heddle-keep")
    kept = (place.path / "kept").read_text()
    try:
        assert done.returncode == 1, done.stdout + done.stderr
        assert done.stdout.splitlines()[-1].strip("= ").startswith("1 failed, 2 passed, 1 warning in ")
        assert f"test_kept.py::test_c: lab {kept} is left up" in section(done.stdout, "heddle")
        assert "test_left.py::test_b left process " in section(done.stdout, "warnings summary")
        named = labs(place)
        assert len(named) == 2 and len(set(named.values())) == 2, named
        assert [left for lab in named.values() if lab != kept for left in leftovers(lab)] == []
        assert not {each.pid for each in claims()} & set(named)
    finally:
        life.down(kept, force=True)
    assert leftovers(kept) == []
    found = {each.get("name"): each.get("value") for each in ET.parse(place.path / "out.xml").iter("property")}
    assert found["heddle.run1.sizes"] == "65536" and found["heddle.fabric"] == "tiny, racks=1", found


@pytest.mark.parametrize(("number", "group"), [long(signal.SIGTERM, False), (signal.SIGINT, True)])
@pytest.mark.long
def test_an_interrupted_session_takes_the_labs_of_all_workers_down(
    tmp_path: Path, leftovers: Leftovers, number: signal.Signals, group: bool
) -> None:
    """SIGTERM reaches the controller only, Ctrl-C the whole process group."""
    place = UserPlace.below(tmp_path, test_slow=SLOW_WORKER, test_slower=SLOW_WORKER)
    session = subprocess.Popen(
        place.command(*PLUGIN, "-n", "2", "--dist", "loadfile"), cwd=place.path, env=place.environment(),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    until(lambda: len(labs(place)) == 2, 90, process=session)
    (os.killpg if group else os.kill)(session.pid, number)
    out, _ = session.communicate(timeout=patience(90))
    assert session.returncode == 2, out
    assert [left for lab in labs(place).values() for left in leftovers(lab)] == []
    assert not {each.pid for each in claims()} & set(labs(place))
