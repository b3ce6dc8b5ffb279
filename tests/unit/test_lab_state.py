"""What is kept between two commands, what `up --dry-run` says, and how a command that fails is named."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import shlex
import stat
import sys
import threading
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from heddle.base import owners, plugins, state
from heddle.base.events import Silent
from heddle.base.problems import InputError, MachineError, Problem
from heddle.base.process import run
from heddle.base.version import VERSION
from heddle.fabric.fabricfile import load_fabric
from heddle.lab.lifecycle import down
from heddle.lab.opening import check_free, open_lab, other_labs, other_owner
from heddle.lab.status import status
from heddle.lab.upscript import script_of
from heddle.render.dialects import RenderOptions
from heddle.runtimes import containerlab
from heddle.runtimes.netns_cleanup import remove_lab
from heddle.runtimes.netns_topology import bind_target, read_topology
from heddle.runtimes.registry import get_runtime
from heddle.spec.load import presets
from heddle.spec.plain import differences, dump_spec, load_spec
from heddle.spec.shapes.clos import ClosSpec
from tests.answers import Answers


@pytest.fixture(autouse=True)
def empty_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEDDLE_STATE_DIR", str(tmp_path / "a state"))
    monkeypatch.setattr(owners, "LOCKS", tmp_path / "run" / "locks")


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"addressing": {"pool": "127.0.0.0/8"}}, "must be a private network"),
        ({"addressing": {"pool": "240.0.0.0/4"}}, "must be a private network"),
        ({"racks": 300, "hosts_per_rack": 300, "addressing": {"rack_prefix": 22}}, "MAC addresses for 65535"),
    ],
)
def test_a_fabric_that_no_kernel_would_carry_is_refused(keys: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        ClosSpec.model_validate({"name": "x", "racks": 1, "ctsw": 1, **keys})


@pytest.mark.parametrize("preset", presets())
def test_a_spec_survives_being_stored(preset: str) -> None:
    spec = load_fabric(preset, overrides=["link.host=12500kbit", "routing.seed=77"]).spec
    assert load_spec(dump_spec(spec)) == spec
    assert dump_spec(spec)["link"]["host"] == "12500kbit"


def test_differences_are_named_by_their_path() -> None:
    old = ClosSpec(name="x", racks=2, ctsw=2)
    new = load_spec({**dump_spec(old), "racks": 3, "routing": {"ecmp": "e-ecmp"}})
    assert differences(old, new) == [("routing.ecmp", "flow", "e-ecmp"), ("racks", 2, 3)]


def test_a_record_comes_back_as_it_was_written() -> None:
    record = state.Record("x", "netns", "running", {"name": "x"}, "tiny", {"total": 1.5})
    state.write_record(record)
    assert state.read_record("x") == record
    assert state.labs() == ["x"]
    assert [path.name for path in state.lab_dir("x").iterdir()] == ["lab.json"]
    assert state.remove_record("x")
    assert not state.remove_record("x")
    assert state.labs() == []


def test_what_is_about_to_be_set_is_recorded_first_and_undone_when_that_fails() -> None:
    before = state.Record("zone", "netns", "running", {"name": "zone"}, queues={"rtsw1": {"alpha": 1}})
    state.write_record(before)
    again: list[state.Record | None] = []

    def fails(error: BaseException, again: list[state.Record | None]) -> None:
        with pytest.raises(type(error)), state.recorded(
            "zone", lambda: again.append(state.read_record("zone")), queues={}, hashing={"rtsw1": 1}
        ):  # fmt: skip
            recorded = state.read_record("zone")
            assert recorded == replace(before, queues={}, hashing={"rtsw1": 1}), "a kill leaves this"
            raise error

    for error in (MachineError(Problem("", "a map", "is full")), KeyboardInterrupt()):
        fails(error, again)
    assert again == [before, before] and state.read_record("zone") == before
    with state.recorded("zone", again.clear, queues={}):
        pass
    assert state.read_record("zone") == replace(before, queues={}) and len(again) == 2
    # Where the record cannot be written, nothing is set.
    mine = state.lab_dir("zone")
    full = "x" * (1 << 20)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        with pytest.raises(MachineError, match="File too large"), state.recorded("zone", list, source=full):
            pytest.fail("it was set")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert state.read_record("zone") == replace(before, queues={}) and [*mine.iterdir()] == [mine / "lab.json"]


def test_a_record_of_another_version_is_recognised() -> None:
    for record, by in (
        (state.Record("x", "netns", "running", {"name": "x"}, version="99.1"), "Heddle 99.1"),
        (state.Record("x", "netns", "running", {"name": "x"}), "Heddle of unknown version"),
    ):
        state.write_record(record)
        with pytest.raises(InputError) as caught:
            open_lab("x")
        assert f"lab x was brought up by {by}, and this is Heddle {VERSION}" in str(caught.value)
        assert "./inv down x" in str(caught.value)
        assert [lab.faults for lab in status()] == [(str(caught.value).partition("\n")[0],)]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 99}', '{"format": 1, "name": "x"}'])
def test_a_record_that_is_damaged_says_how_to_go_on(text: str) -> None:
    path = state.lab_dir("x") / "lab.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(MachineError, match=r"\./inv down x"):
        state.read_record("x")


@pytest.mark.parametrize(
    "name", ["", ".", "..", "*", "a/b", "/home", "Zone", "zone.yml", "zone\n", "a" * 13, "heddle-x"]
)
def test_invalid_lab_names_are_never_taken_down(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = str(tmp_path / "victim") if name == "/home" else name
    (tmp_path / "victim").mkdir()
    monkeypatch.setattr("heddle.lab.lifecycle.remove", lambda *_: pytest.fail("looked for something to remove"))
    for verb in (down, open_lab, status, state.read_record, state.remove_record):
        with pytest.raises(InputError):
            verb(asked)
    with pytest.raises(InputError), owners.lock(asked):
        pass
    if not asked.isalnum():
        with pytest.raises(ValueError, match="is not a lab's name"):
            remove_lab(asked, tmp_path / "victim", Silent())
    assert [path.name for path in tmp_path.iterdir()] == ["victim"]


def test_a_directory_that_is_no_labs_is_not_listed() -> None:
    for name in ("x", "X-1", "a b"):
        path = state.state_dir() / "labs" / name / "lab.json"
        path.parent.mkdir(parents=True)
        path.write_text("")
    assert state.labs() == ["x"]


def test_a_lock_is_held_by_one_that_lives_and_leaves_no_file() -> None:
    place = owners.LOCKS
    with owners.lock("x", work="run"):
        said = f"another Heddle \\(process {os.getpid()}\\): its run goes on"
        with pytest.raises(InputError, match=said), owners.lock("x"):
            pass
        with owners.lock("y"), owners.lock("x", owners.CHANGES):
            assert sorted(path.name for path in place.iterdir()) == ["x.changes.lock", "x.lock", "y.lock"]
        assert [stat.S_IMODE(path.stat().st_mode) for path in (place, place / "x.lock")] == [0o700, 0o600]
    assert not place.parent.exists()
    # The lock of a killed command is free.
    place.mkdir(parents=True)
    (place / "x.lock").write_text("12345 1 run\n")
    with owners.lock("x"):
        pass
    # A holder that was killed as it started a command: its child has the lock for a moment.
    place.mkdir(parents=True)
    with (place / "x.lock").open("w") as file:
        file.write("999999999 1\n")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        timer = threading.Timer(0.1, fcntl.flock, (file, fcntl.LOCK_UN))
        timer.start()
        with owners.lock("x"):
            pass
        timer.join()


def test_a_lab_belongs_to_one_state_directory_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here no lab is on the machine, so an owner counts while the process of its `up` runs: that is this one."""
    with owners.lock("x"):
        owners.claim_lab("x")
    own = owners.owner_of("x")
    assert own is not None and own.ours and own.starting and own.uid == os.getuid()
    assert stat.S_IMODE((owners.LOCKS / "x.json").stat().st_mode) == 0o600
    assert other_owner("x") is None
    monkeypatch.setenv("HEDDLE_STATE_DIR", str(tmp_path / "theirs"))
    whose = f"lab x belongs to {own.user} (state directory {tmp_path}/a state)"
    for refused in (lambda: open_lab("x"), lambda: status("x"), lambda: check_free("x"), lambda: down("x")):
        with pytest.raises(InputError) as caught:
            refused()
        assert str(caught.value).startswith(whose + "\n"), caught.value
    assert "./inv down x --force" in str(caught.value)
    asked: list[str] = []

    def no(question: str) -> bool:
        asked.append(question)
        return False

    with pytest.raises(InputError):
        down("x", ask=no)
    assert asked == [f"{whose}. Remove it?"]
    # What goes on is said, and not even --force ends it.
    with owners.lock("x", work="run"):
        works = f", and its run goes on (process {os.getpid()})"
        with pytest.raises(InputError) as caught:
            check_free("x")
        assert str(caught.value).startswith(f"{whose}{works}\n")
        with pytest.raises(InputError, match="is being worked on by another Heddle"):
            down("x", force=True)
    assert [each.lab for each in other_labs()] == ["x"]
    # A process that has ended, and no lab: the record goes by itself.
    (owners.LOCKS / "x.json").write_text(json.dumps({**asdict(own), "pid": 999999999}))
    assert other_owner("x") is None and other_labs() == [] and not owners.LOCKS.exists()


def test_a_removal_keeps_runs_where_they_are_not_meant_and_is_recorded_before_it_begins() -> None:
    runs = state.lab_dir("x") / "runs"
    (runs / "0001").mkdir(parents=True)
    (runs / "0002").mkdir()
    (runs / "last").symlink_to("0002")
    state.write_record(state.Record("x", "netns", "running", {"name": "x"}, version=VERSION))
    (state.lab_dir("x") / "topology").mkdir()
    assert state.stored_runs("x") == 2
    assert state.remove_record("x", keep_runs=True)
    assert [path.name for path in state.lab_dir("x").iterdir()] == ["runs"]
    assert not state.remove_record("x", keep_runs=True), "the second time there is nothing else"
    assert state.remove_record("x") and not state.lab_dir("x").exists()
    assert not state.remove_record("x")
    state.write_record(state.Record("x", "netns", "ending", {"name": "x"}, version=VERSION))
    with pytest.raises(InputError, match=r"its `down` is running or was killed\n.*down x finishes it"):
        open_lab("x")


def test_a_lock_that_every_user_can_make_does_not_stop_a_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containerlab's own is such a lock."""
    hosts, lock = tmp_path / "hosts", tmp_path / "clab-hosts.lock"
    hosts.write_text("127.0.0.1 localhost\n###### CLAB-x-START ######\n10.0.0.1 a\n###### CLAB-x-END ######\n")
    for name, value in (("_HOSTS", hosts), ("_HOSTS_LOCK", lock), ("_SSH_CONFIGS", tmp_path), ("_HOSTS_S", 0.2)):
        monkeypatch.setattr(containerlab, name, value)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        containerlab._forget("x")
    assert hosts.read_text() == "127.0.0.1 localhost\n"


def test_a_command_that_cannot_be_run_is_a_machine_error(tmp_path: Path) -> None:
    (tmp_path / "ip").write_text("")
    with pytest.raises(MachineError, match="cannot be used: Permission denied"):
        run([str(tmp_path / "ip")])
    with pytest.raises(MachineError, match="is not installed"):
        run(["no-such-command"])


def test_the_state_directory_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HEDDLE_STATE_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert state.state_dir() == tmp_path / "heddle"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.delenv("SUDO_USER", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert state.state_dir() == tmp_path / ".local/state/heddle"


def test_what_up_explains_and_refuses() -> None:
    script = script_of(ClosSpec(name="dry", racks=1, ctsw=1, hosts_per_rack=1))
    for line in (
        "netns add heddle-dry-rtsw1",
        "link add eth1 netns heddle-dry-rtsw1 address 02:01:00:01:00:01 mtu 4200 type veth peer name eth1 "
        "netns heddle-dry-ctsw1 address 02:02:00:01:00:01 mtu 4200",
        "route add 10.0.0.0/8 via 10.0.0.0 dev eth1",
        "ip netns exec heddle-dry-rtsw1 sh /etc/frr/start.sh",
        "class add dev eth1 parent 1: classid 1:1 htb rate 100000000bit",
        "qdisc add dev eth1 parent 1:40 handle 40: tbf rate 40gbit",
    ):
        assert line in script
    assert state.labs() == []
    assert not get_runtime("netns").exists("dry")
    # Explain refuses what up would refuse.
    spec = ClosSpec(name="dry", racks=1, ctsw=1, hosts_per_rack=1)
    with pytest.raises(InputError, match="--dialect frr needs runtime containerlab, not "):
        script_of(spec, "netns", RenderOptions(dialect="frr"))
    with pytest.raises(InputError, match="--dialect c9s is for Kubernetes"):
        script_of(spec, "containerlab", RenderOptions(dialect="c9s"))
    # An unknown runtime is the users mistake.
    with pytest.raises(InputError, match="did you mean netns"):
        get_runtime("netn")


def test_a_lab_whose_runtime_is_missing_is_not_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its nodes would stay, and nothing would know of them."""
    spec = dump_spec(load_fabric("tiny", name="far").spec)
    record = state.Record("far", "kubernetes", "running", spec, options={"namespace": "mine"}, version=VERSION)
    state.write_record(record)
    monkeypatch.setattr(plugins, "folder", lambda plugin: tmp_path / plugin)
    plugins._there.cache_clear()
    try:
        with pytest.raises(InputError, match="runtime kubernetes is a part of the plugin kubernetes, which is not in"):
            down("far")
        with pytest.raises(InputError, match="which is not in this installation"):
            down("other", cluster={"namespace": "mine"})
        assert state.read_record("far") == record
        assert not down("other")
    finally:
        plugins._there.cache_clear()


def test_a_topology_with_what_namespaces_cannot_do_is_refused_with_all_reasons(
    tmp_path: Path, answers: Answers
) -> None:
    def read(*lines: str) -> object:
        (tmp_path / "x.clab.yml").write_text("\n".join(lines))
        return read_topology(tmp_path / "x.clab.yml")

    answers(read)
    assert [bind_target(each) for each in ("/etc//frr/./z/", "//etc/frr", "/", "etc", "/a/..")] == [
        *("/etc/frr/z", "/etc/frr"), "", "", "",
    ]  # fmt: skip


def failure(*argv: str, called: str = "", timeout: float = 20.0) -> str:
    with pytest.raises(MachineError) as failed:
        run(argv, called=called, timeout=timeout)
    return str(failed.value)


def test_a_command_that_fails_is_named_with_its_first_lines_or_time(answers: Answers) -> None:
    """A command that takes too long is ended, and the error says what to try."""
    answers(lambda line, called, timeout: run(shlex.split(line), called=called, timeout=timeout))
    said = failure(sys.executable, "-c", "{}[7]", called="the agent")
    assert said == "the agent failed with exit code 1: KeyError: 7"
    assert failure("sh", "-c", "kill -9 $$", called="the agent").startswith("the agent was killed\n")


def test_a_lab_that_goes_takes_the_locks_of_killed_processes_with_it_and_no_others() -> None:
    with owners.lock("zone"):
        for what in ("te", "changes"):
            (owners.LOCKS / f"zone.{what}.lock").write_text("999999 1 te\n")  # of a process that was killed
        with owners.lock("zone", "te"), owners.lock("zoner", "te"):
            owners.disown_lab("zone")
            assert sorted(each.name for each in owners.LOCKS.iterdir()) == [
                "zone.lock",
                "zone.te.lock",
                "zoner.te.lock",
            ]
        (owners.LOCKS / "zone.te.lock").write_text("999999 1 te\n")
        owners.disown_lab("zone")
    assert not owners.LOCKS.exists()
