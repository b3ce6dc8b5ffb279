"""What pods, workers, lab servers and files of other people send is limited in names, size and time, and named."""

from __future__ import annotations

import base64
import gzip
import hashlib
import hmac
import io
import json
import math
import os
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final

import pytest

from heddle.base import values
from heddle.base.events import Silent
from heddle.base.problems import InputError, MachineError
from heddle.base.untrusted import LINE_BYTES, LINE_ITEMS, inflated, is_safe_name, kept_below, parsed
from heddle.endpoints.crew import CrewMember
from heddle.endpoints.workloadfile import files_of
from heddle.lab.imported.choose import files_of as files_of_topology
from heddle.runtimes import netns_topology
from heddle.runtimes.clusterkind import IndexPod, PodState
from heddle.runtimes.netns_topology import packed, unpack
from heddle.runtimes.shardcalls import AgentCall
from heddle.shards.carrier import FarShard, opened, sealed
from heddle_plugins.experiments.finding import files_of_experiment
from heddle_plugins.experiments.inpod import GroupOrder, SentFigures, SentRepeat
from heddle_plugins.experiments.loading import Experiment, load_experiment
from heddle_plugins.experiments.sweep import FabricPod, Sweep, _Pods

FILE = """\
title: Sweep
fabric: tiny
repeats: 2
runs:
  live: {set: {ctsw: [2, 4]}, run: {collective: all-reduce, size: 4K}}
checks:
  run: busbw(live)
"""

# Names and archives.


@pytest.mark.parametrize("name", ["", ".", "..", ".git", "a/b", "/a", "a\nb", "a\x1b[2J", "a\0", "\udc80", "x" * 256])
def test_a_name_that_leads_elsewhere_or_cannot_be_seen_is_not_safe(name: str) -> None:
    assert not is_safe_name(name) and is_safe_name("run.json") and is_safe_name("dön e")


def archive(*members: tuple[str, bytes], **changes: Any) -> str:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            for key, value in changes.items():
                setattr(member, key, value)
            tar.addfile(member, io.BytesIO(data))
    return base64.b85encode(content.getvalue()).decode()


def headers(*blocks: bytes) -> str:
    return base64.b85encode(gzip.compress(b"".join(blocks) + bytes(1024))).decode()


def member(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0) -> bytes:
    made = tarfile.TarInfo(name)
    made.type, made.size = kind, max(size, 0)
    block = bytearray(made.tobuf(tarfile.GNU_FORMAT))
    if size < 0:
        block[124:136] = b"\xff" * 11 + bytes([256 + size])
        block[148:156] = b"%06o\0 " % (sum(block[:148]) + 8 * 32 + sum(block[156:512]))
    return bytes(block)


FILES: Final = 500  # the limit of an archive in these tests


@pytest.fixture
def few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netns_topology, "UNPACKED_FILES", FILES)


ARCHIVES: Final[Mapping[str, Callable[[], str]]] = {
    **{name: lambda name=name: archive((name, b"x")) for name in (  # type: ignore[misc]
        "..", "../x", "a/../../x", "/etc/x", ".", ".git/hooks/x", "a/.ssh/x", "a//b", "a\nb", "\x1b[2J")},
    "twice": lambda: archive(("a", b"1"), ("a", b"2")),
    "a file that is a directory, too": lambda: archive(("b", b"1"), ("a/b", b"1"), ("a", b"2")),
    "a directory that is a file, too": lambda: archive(("a", b"1"), ("a-b", b"1"), ("a/b/c", b"2")),
    "a path that is too long": lambda: archive(("/".join("a" * 2000), b"1")),
    "a link": lambda: archive(("a", b""), type=tarfile.SYMTYPE, linkname="/etc"),
    "a hard link": lambda: archive(("a", b""), type=tarfile.LNKTYPE, linkname="/etc/passwd"),
    "a device": lambda: archive(("a", b""), type=tarfile.CHRTYPE),
    "a fifo": lambda: archive(("a", b""), type=tarfile.FIFOTYPE),
    "a directory": lambda: archive(("a", b""), type=tarfile.DIRTYPE),
    "larger than it is": lambda: headers(member("a", size=1 << 40)),
    "negative": lambda: headers(member("a", size=-1)),
    "sparse": lambda: headers(member("a", tarfile.GNUTYPE_SPARSE, 512), bytes(512)),
    "nested long names": lambda: headers(*[member("x", tarfile.GNUTYPE_LONGNAME)] * 20_000),
    "too many": lambda: headers(*(member(f"f{number}") for number in range(FILES + 1))),
    "no archive": lambda: base64.b85encode(gzip.compress(b"x" * 600)).decode(),
    "no gzip": lambda: base64.b85encode(b"hello").decode(),
    "cut off": lambda: archive(("a", os.urandom(5000)))[:-500],
    "no base85": lambda: "\" \"",
    "no ASCII": lambda: "\u00e9",
}  # fmt: skip


@pytest.mark.usefixtures("few_files")
@pytest.mark.parametrize("kind", ARCHIVES)
def test_an_archive_of_anything_but_plain_files_writes_nothing(kind: str, tmp_path: Path) -> None:
    text = ARCHIVES[kind]()
    (tmp_path / "out").mkdir()
    with pytest.raises(ValueError, match=r"[a-z]"):
        unpack(text, tmp_path / "out")
    assert [*tmp_path.rglob("*")] == [tmp_path / "out"]


def test_an_archive_that_unpacks_to_more_than_the_limit_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(netns_topology, "UNPACKED_BYTES", 1 << 20)
    zeros = archive(("zeros", bytes(2 << 20)))
    assert len(zeros) < 1 << 12
    with pytest.raises(ValueError, match="bytes when it is unpacked"):
        unpack(zeros, tmp_path / "out")
    assert not [*tmp_path.iterdir()]


def test_what_is_packed_is_unpacked_and_not_executable(tmp_path: Path) -> None:
    (tmp_path / "in/sub").mkdir(parents=True)
    (tmp_path / "in/sub/start.sh").write_text("#!/bin/sh\n")
    (tmp_path / "in/sub/start.sh").chmod(0o755)
    unpack(packed(tmp_path / "in"), tmp_path / "out")
    found = tmp_path / "out/sub/start.sh"
    assert found.read_text() == "#!/bin/sh\n" and found.stat().st_mode & 0o777 == 0o644


# Lines.


@pytest.mark.parametrize("item", ["[],", "{},", "0,", '"a",', '{"a":1},', "[[]],", '{ "a": { "b": [] } },'])
def test_a_line_of_many_values_is_refused_before_they_are_built(item: str) -> None:
    line = f"[{item * (LINE_BYTES // len(item) - 2)}0]".encode()
    assert len(line) <= LINE_BYTES
    before = time.process_time()
    with pytest.raises(ValueError, match=f"more than {LINE_ITEMS} values"):
        parsed(line)
    assert time.process_time() - before < 20
    assert parsed(b"[1, 2]") == [1, 2] and parsed(json.dumps("," * 1000).encode()) == "," * 1000
    with pytest.raises(ValueError, match="nested too deeply"):
        parsed(b"[" * 200_000)


def test_values_have_limits_of_their_own() -> None:
    with pytest.raises(ValueError, match="more than"):
        values.load([0] * (LINE_ITEMS + 1))
    with pytest.raises(ValueError, match="when it is unpacked"):
        inflated(gzip.compress(bytes(1000)), 999, gzip=True)
    assert inflated(gzip.compress(bytes(1000)), 1000, gzip=True) == bytes(1000)


LIAR = """
import json, sys, time
for count, line in enumerate(sys.stdin):
    if not line.strip():
        continue
    number = json.loads(line)["number"]
    if count < 5:
        print(json.dumps({"result": 1, "number": number}), flush=True)
        continue
    for answer in %s:
        print(json.dumps({**answer, "number": number}), flush=True)
    %s
"""


def liar(answers: str, then: str = "") -> Callable[[IO[bytes]], subprocess.Popen[bytes]]:
    """Starts an agent that answers the first calls, which compare clocks, and then everything with these answers."""

    def start(errors: IO[bytes]) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-I", "-S", "-c", LIAR % (answers, then)]
        return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)

    return start


CALL: Final = {"call": "heddle.shards.building:clock", "args": [], "kwargs": {}}


@pytest.mark.parametrize(
    ("answers", "then"),
    [
        ("[]", "time.sleep(60)"),
        ("iter(lambda: time.sleep(0.05) or {'event': 'say', 'args': ['x']}, None)", ""),
        ("[]", "while 1: print('x', end='', flush=True), time.sleep(0.01)"),
    ],
)
def test_a_shard_that_does_not_answer_is_ended_also_while_it_sends(answers: str, then: str) -> None:
    agent = AgentCall("s2", liar(answers, then), lambda: None)
    try:
        with pytest.raises(MachineError, match=r"has not answered within 0\.5 s"):
            agent.call(CALL, Silent(), within=0.5)
        agent._process.wait(10)
    finally:
        agent.close()


def test_a_shard_that_reports_a_defect_is_an_error_with_its_name() -> None:
    agent = AgentCall("s2", liar("[{'error': 'defect', 'text': 'Traceback: here'}]"), lambda: None)
    try:
        with pytest.raises(MachineError, match=r"shard s2 has failed:\nTraceback: here"):
            agent.call(CALL)
    finally:
        agent.close()


# Pods of experiments.


@pytest.fixture
def loaded(tmp_path: Path) -> Experiment:
    (tmp_path / "x.yml").write_text(FILE)
    return load_experiment(tmp_path / "x.yml", str(tmp_path / "x.yml"))


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of the user's that is --out."""
    place = tmp_path / "project"
    (place / ".git/hooks").mkdir(parents=True)
    (place / "runs/earlier").mkdir(parents=True)
    (place / "thesis.tex").write_text("mine")
    monkeypatch.chdir(place)
    return place


def answered(loaded: Experiment, sent: list[tuple[str, Any]]) -> tuple[Sweep, FabricPod, _Pods]:
    """A sweep whose first pod has sent these events, and has ended."""
    sweep = Sweep(loaded, Silent(), copies=Path("runs"))
    fabric = FabricPod(1, 0, sweep.groups()[0])
    pods = _Pods(sweep, None, [fabric])  # type: ignore[arg-type]  # no cluster is asked
    fabric.pod = IndexPod("p", "u1", PodState(True, uid="u1"))
    told = Path(loaded.file).with_name("told.json")
    told.write_text(json.dumps([{"event": name, "args": [values.dump(each)]} for name, each in sent]))
    answers = f"json.load(open({str(told)!r}))"
    order = GroupOrder("x", (), 1, {}, 0, True, "x")
    fabric.begin(
        fabric.pod, liar(answers, "sys.exit()"), order, lambda *event: pods._events.put((fabric, "u1", *event))
    )
    while True:
        _, _, kind, value = pods._events.get(timeout=20)
        if kind == "ended":
            return sweep, fabric, pods
        if not fabric.done:
            pods._event(fabric, kind, value)


def files(place: Path) -> dict[str, str]:
    return {str(each.relative_to(place)): each.read_text() if each.is_file() else "" for each in place.rglob("*")}


@pytest.mark.usefixtures("few_files")
@pytest.mark.parametrize("kind", ARCHIVES)
def test_a_lying_pod_changes_and_removes_nothing_of_the_user(kind: str, loaded: Experiment, mine: Path) -> None:
    before = files(mine)
    sweep, fabric, _ = answered(loaded, [("repeated", SentRepeat(0, 1, None, "x", (ARCHIVES[kind](),)))])
    assert fabric.done and all(each.why for each in sweep.done) and files(mine) == before
    assert "is given up" in sweep.done[0].why and fabric.pod is None


def test_half_a_character_in_the_reason_of_a_pod_can_be_written_to_a_file(loaded: Experiment, mine: Path) -> None:
    sweep, _, _ = answered(loaded, [("repeated", SentRepeat(0, 1, None, "\ud800x"))])
    assert sweep.done[0].why == "?x"


def test_an_experiment_that_names_a_hidden_file_asks_no_cluster(loaded: Experiment) -> None:
    named = FILE.replace("{collective: all-reduce, size: 4K}", "{trace: .ssh/id.et}")
    Path(loaded.file).write_text(named)
    with pytest.raises(InputError, match="names hidden files"):
        Sweep(loaded, Silent(), typed=loaded.file).run()


def test_nothing_is_left_of_a_stored_run_that_cannot_be_written(loaded: Experiment, mine: Path) -> None:
    (mine / "runs").rename(mine / "kept")
    (mine / "runs").write_text("a file")
    before, run = files(mine), archive(("run.json", b"{}"))
    sweep, _, _ = answered(loaded, [("repeated", SentRepeat(0, 1, None, "", (run,)))])
    assert files(mine) == before and "runs cannot be used" in sweep.done[0].why


def test_a_lying_pod_cannot_choose_a_directory_and_a_lost_one_takes_only_its_own(
    loaded: Experiment, mine: Path
) -> None:
    before = files(mine)
    run = archive(("run.json", b"{}"), mode=0o4755)
    sweep, fabric, pods = answered(loaded, [("repeated", SentRepeat(0, repeat, None, "", (run,))) for repeat in (1, 2)])
    made = sorted({*files(mine)} - {*before})
    assert made == ["runs/x-live-2-1", "runs/x-live-2-1/run.json", "runs/x-live-2-2", "runs/x-live-2-2/run.json"]
    assert (mine / made[1]).stat().st_mode & 0o7777 == 0o644 and len(sweep.result().directories) == 2
    pods._lose(fabric, fabric.pod, PodState(False, "was removed"))  # type: ignore[arg-type]
    assert files(mine) == before and not sweep.done


FIGURES: Final = SentFigures((), None, "", (), {})
STRANGE: Final[Mapping[str, tuple[str, Any]]] = {
    "variant 10**6": ("repeated", SentRepeat(10**6, 1, None, "")),
    "variant -1": ("repeated", SentRepeat(-1, 1, None, "")),
    "variant of another pod": ("repeated", SentRepeat(1, 1, None, "")),
    "repeat 0": ("repeated", SentRepeat(0, 0, None, "")),
    "repeat 3": ("repeated", SentRepeat(0, 3, None, "")),
    "too many runs": ("repeated", SentRepeat(0, 1, None, "", (archive(("a", b"")),) * 1000)),
    **{
        f"figure {value}": ("repeated", SentRepeat(0, 1, SentFigures((), None, "", (), {"busbw": value}), ""))
        for value in (math.inf, math.nan, 10**400)
    },
    "value inf": ("repeated", SentRepeat(0, 1, SentFigures((), None, "", (("busbw", {}, math.inf),), {}), "")),
    "refused without a reason": ("refused", ()),
}


@pytest.mark.parametrize("kind", STRANGE)
def test_an_answer_that_no_pod_of_heddle_gives_fails_its_fabric_only(kind: str, loaded: Experiment, mine: Path) -> None:
    before = files(mine)
    sweep, fabric, _ = answered(loaded, [STRANGE[kind]])
    assert fabric.done and [each.variant for each in sweep.done] == [loaded.variants[0]] and sweep.done[0].why
    assert files(mine) == before


@pytest.mark.parametrize(
    "event",
    [{"event": "repeated", "args": [7]}, {"event": "repeated", "args": []}, {"event": "keep", "args": ["x"]},
     {"event": "refused", "args": ["x"]}, {"event": "repeated", "args": [{"!": "nothing"}]}],
)  # fmt: skip
def test_an_event_of_another_type_ends_the_call(event: Any, loaded: Experiment) -> None:
    heard: list[tuple[str, Any]] = []
    sweep = Sweep(loaded, Silent())
    fabric = FabricPod(1, 0, sweep.groups()[0])
    ended = threading.Event()

    def report(kind: str, value: Any) -> None:
        heard.append((kind, value))
        ended.set()

    pod = IndexPod("p", "u1", PodState(True, uid="u1"))
    fabric.begin(pod, liar(repr([event])), GroupOrder("x", (), 1, {}, 0, True, "x"), report)
    assert ended.wait(20)
    ((kind, why),) = heard
    assert kind == "ended" and "the answer of shard of fabric 1 cannot be used" in why


def test_a_repeat_is_taken_once(loaded: Experiment) -> None:
    sweep = Sweep(loaded, Silent())
    sweep.take(SentRepeat(0, 1, FIGURES, ""))
    with pytest.raises(MachineError, match="repeat 1 of live ctsw=2, which is not expected"):
        sweep.take(SentRepeat(0, 1, FIGURES, ""))


# Streams of workers.


@pytest.fixture
def member_of(request: pytest.FixtureRequest) -> Iterator[Callable[[str], CrewMember]]:
    made: list[CrewMember] = []

    def start(script: str) -> CrewMember:
        made.append(CrewMember((0,), "the worker of rank 0 on host1:eth1", [sys.executable, "-S", "-c", script], 0))
        return made[-1]

    yield start
    for each in made:
        each.proc.kill()
        each.proc.wait()
        each.proc.stdout.close()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("print('garbage')", "a line that is no message"),
        ("print('[]')", "a line that is no message"),
        ("print('{\"report\": 5}')", "a line that is no message"),
        ("print('[' * 100000)", "a line that is no message"),
        ("print('{\"waits\": [' + '[],' * 3000000 + '[]]}')", "a line that is no message: has more than"),
        ("while 1: print('x' * 100000, end='')", "more than any worker does"),
        ("while 1: print('{\"ready\": true}')", "more than any worker does"),
    ],
)
def test_a_worker_that_sends_anything_is_an_error_with_its_ranks(
    script: str, why: str, member_of: Callable[[str], CrewMember]
) -> None:
    member, before = member_of(script), time.process_time()
    with pytest.raises(MachineError, match=f"the worker of rank 0 on host1:eth1 has sent {why}"):
        while member.read():
            pass
    assert time.process_time() - before < 60 and len(member._rest) <= LINE_BYTES + (1 << 16)


def test_lines_of_a_worker_may_come_in_pieces(member_of: Callable[[str], CrewMember]) -> None:
    script = """import sys, time
for piece in ('{"rea', 'dy": tr', 'ue}\\\\n{"moving": true}\\\\n{"done"', ': true}\\\\n'):
    sys.stdout.write(piece); sys.stdout.flush(); time.sleep(0.1)
time.sleep(30)"""
    member = member_of(script.replace("\\\\n", "\\n"))
    while len(member.inbox) < 2:
        member.read()
    assert [(each.ready, each.done) for each in member.inbox] == [(True, False), (False, True)]


# Datagrams of shards.

KEY: Final = b"k" * 32
GOOD: Final = {"lab": "x", "boot": "b", "number": 1, "down": [], "link": [2, 1], "seen": "own", "sent_ns": 1,
               "echo_ns": 0, "held_ns": 0}  # fmt: skip


@pytest.mark.parametrize("key", ["number", "sent_ns", "echo_ns", "held_ns"])
@pytest.mark.parametrize(
    "value",
    [math.inf, -math.inf, math.nan, 10**4000, -1, -(10**30), 1.5, "1", True, None, [], {}],
    ids=lambda value: f"{value!s:.9}" if not isinstance(value, str) else "a text",
)
def test_a_beat_with_a_wrong_number_is_dropped(key: str, value: Any) -> None:
    far = FarShard(time.monotonic(), frozenset({(2, 1)}))
    for data in ({**GOOD, key: value}, {**GOOD, "down": [value]}, {**GOOD, "link": [value, 1]}):
        text = opened(KEY, sealed(KEY, data))
        assert text is None or not far.hear(text, time.monotonic(), "own")
    assert (far.sent_ns, far.number, far.down) == (0, -1, frozenset())
    assert far.hear(GOOD, time.monotonic(), "own")


@pytest.mark.parametrize("body", [b"[" * 60_000, b"hello", b"\xff\xfe", b"", b"[" + b"[]," * 20_000, b"9" * 5000])
def test_a_beat_that_is_no_json_is_dropped(body: bytes) -> None:
    assert opened(KEY, hmac.digest(KEY, body, hashlib.sha256) + body) is None
    assert opened(KEY, b"x" * 32 + body) is None


# Files that a file names.

OTHERS: Final = ("/etc/hostname", "~/.ssh/id", "../secret", "sub/../../secret", "link")


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize(
    ("text", "ending"),
    [
        ("jobs: {a: {trace: FILE}}", ".et"),
        ("jobs: {a: {trace: [in.et, FILE]}}", ".et"),
        ("trace: FILE", ""),
        ("jobs: {a: {trace: in.et, trace_groups: FILE}}", ".json"),
        ("trace: in.et\ntrace_groups: FILE", ""),
        ("jobs: {a: {msccl: FILE}}", ""),
        ("jobs: {a: {matrix: FILE}}", ".csv"),
        ("matrix: FILE", ".csv"),
        ("jobs: {a: {collective: all-to-all-v, counts: FILE}}", ".csv"),
        ("jobs: {a: {collective: all-reduce, placement: FILE}}", ".txt"),
        ("placement: FILE\njobs: {a: {collective: all-reduce}}", ".txt"),
        ("jobs: {a: {steps: [{collective: all-reduce}, {matrix: FILE}]}}", ".csv"),
        ("steps: [{collective: all-to-all-v, counts: FILE}]", ".csv"),
    ],
)
def test_a_workload_of_someone_else_sends_no_file_beyond_its_folder(
    text: str, ending: str, other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = strangers(tmp_path, monkeypatch)
    name = f"{other}{ending}"
    if other == "link":
        (folder / name).symlink_to(tmp_path / "secret")
    (folder / "w.yml").write_text(text.replace("FILE", name))
    with pytest.raises(InputError, match="names files outside its directory, which are not copied") as error:
        files_of("dl/w.yml")
    assert name.removeprefix("~/").removeprefix("../") in str(error.value)
    (folder / f"own{ending}").write_text("x")
    (folder / "w.yml").write_text(text.replace("FILE", f"./own{ending}"))
    sent = {Path(each).resolve() for each in files_of("dl/w.yml")}
    assert sent >= {folder / "w.yml", folder / f"own{ending}"} and all(each.is_relative_to(folder) for each in sent)


def strangers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files of someone else, below the home of the user."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "dl"
    folder.mkdir()
    (tmp_path / "secret").write_text("mine")
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/id").write_text("key")
    (folder / "in.et").write_text("x")
    return folder


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize(
    ("fabric", "run"),
    [
        ("{use: FILE.yml}", "{run: {collective: all-reduce}}"),
        ("FILE.yml", "{run: {collective: all-reduce}}"),
        ("tiny", "{fabric: FILE.yml, run: {collective: all-reduce}}"),
        ("tiny", "{fabric: {use: FILE.yml}, run: {collective: all-reduce}}"),
        ("tiny", "{workload: FILE.yml}"),
        ("tiny", "{workload: [ring, FILE.yml]}"),
        ("tiny", "{workload: FILE.csv}"),
        ("tiny", "{workload: named.yml}"),
        ("tiny", "{run: {collective: all-reduce, msccl: FILE}}"),
        ("tiny", "{run: {jobs: {a: {collective: all-reduce, placement: FILE.txt}}}}"),
        ("tiny", "{run: {jobs: {a: {collective: all-to-all-v, counts: FILE.csv}}}}"),
        ("tiny", "{run: {jobs: {a: {trace: FILE.et}}}}"),
        ("tiny", "{run: {trace: in.et, trace_groups: FILE.json}}"),
        ("tiny", "{run: {steps: [{matrix: FILE.csv}]}}"),
    ],
)
def test_an_experiment_of_someone_else_sends_no_file_beyond_its_folder(
    fabric: str, run: str, other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = strangers(tmp_path, monkeypatch)
    if other == "link":
        for ending in ("", ".yml", ".csv", ".txt", ".et", ".json"):
            (folder / f"link{ending}").symlink_to(tmp_path / "secret")
    (folder / "named.yml").write_text(f"matrix: {other}.csv\n")
    text = f"title: x\nfabric: {fabric}\nruns:\n  a: {run}\nchecks: {{}}\n"
    (folder / "e.yml").write_text(text.replace("FILE", other))
    secrets = {"/etc/hostname", str(tmp_path / "secret"), str(tmp_path / ".ssh/id")}
    try:
        sent = files_of_experiment("dl/e.yml")
    except InputError as error:
        assert "outside its directory" in str(error)
    else:
        assert {str(Path(each).expanduser().resolve()) for each in sent} & secrets == set()
        assert run == "{workload: FILE.csv}" and sent == ["dl/e.yml"]  # as load_experiment: not beside the file


@pytest.mark.parametrize("name", [".ssh/id", "sub/.hidden.et", "link"])
def test_a_hidden_file_is_not_sent_even_from_the_folder_itself(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strangers(tmp_path, monkeypatch)
    (tmp_path / "link").symlink_to(".ssh/id")
    (tmp_path / "w.yml").write_text(f"jobs: {{a: {{trace: [{name}]}}, b: {{collective: msccl, msccl: {name}}}}}\n")
    (tmp_path / "t.clab.yml").write_text(f"name: x\ntopology: {{nodes: {{a: {{binds: ['{name}:/x']}}}}}}\n")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/.hidden.et").write_text("x")
    calls: list[tuple[Callable[[str], object], str]]
    calls = [(files_of, "~/w.yml"), (files_of, "w.yml"), (files_of_topology, "~/t.clab.yml")]
    for named, typed in calls:
        with pytest.raises(InputError, match=r"names hidden files, which are not copied.*\n.*without a dot"):
            named(typed)
    assert kept_below(tmp_path / ".ssh/w.yml", [str(tmp_path / ".ssh/id")])  # the folder itself may be hidden


@pytest.mark.parametrize("bound", [".", "..", "../dl/.."])
def test_a_topology_does_not_send_the_home_directory(
    bound: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = strangers(tmp_path, monkeypatch)
    topology = (tmp_path if bound == "." else folder) / "t.clab.yml"
    topology.write_text(f"name: x\ntopology: {{nodes: {{a: {{binds: ['{bound}:/all']}}}}}}\n")
    with pytest.raises(InputError, match=r"binds your home directory, or one above it"):
        files_of_topology(str(topology))
    if bound == ".":
        (folder / "t.clab.yml").write_text(topology.read_text())
        assert str(folder / "in.et") in files_of_topology(str(folder / "t.clab.yml"))


def test_half_a_character_of_a_pod_is_a_question_mark() -> None:
    line = b'{"why": "\\ud800x \\uD83D\\uDE00 \\\\ud800", "\\udfff": [1e400, "\xc3\xa9"]}\n'
    assert parsed(line) == {"why": "?x \U0001f600 \\ud800", "?": [math.inf, "\u00e9"]}
    with pytest.raises(ValueError, match="decode"):
        parsed(b'"\xed\xa0\x80"')


def test_files_typed_on_the_command_line_are_sent_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert files_of("../m.csv,counts=/srv/c.csv") == ["../m.csv", "/srv/c.csv"]
    assert files_of("/srv/gpt.et,trace_groups=../g.json") == ["/srv/gpt.et", "../g.json"]


@pytest.mark.parametrize("resolve", [Path.resolve, lambda path: Path(os.path.realpath(path))])
def test_a_loop_of_links_is_below_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resolve: Callable[[Path], Path]
) -> None:
    """Also with a resolve that leaves a loop as it is, as the one of Python 3.13."""
    monkeypatch.setattr(Path, "resolve", resolve)
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert kept_below(tmp_path / "w.yml", [str(tmp_path / "none")]) == [str(tmp_path / "none")]
    with pytest.raises(InputError, match="outside its directory"):
        kept_below(tmp_path / "w.yml", [str(tmp_path / "a")])


@pytest.mark.parametrize("levels", [9, 40])
def test_aliases_of_a_topology_or_a_workload_take_no_time(levels: int, tmp_path: Path) -> None:
    rows = ["a0: &a0 [x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    last = f"*a{levels - 1}"
    merged = ["b0: &b0 {a: x}"]
    merged += [f"b{n}: &b{n} {{<<: [{', '.join([f'*b{n - 1}'] * 9)}]}}" for n in range(1, levels)]
    before = time.process_time()
    topology, workload = tmp_path / "bomb.clab.yml", tmp_path / "w.yml"
    topology.write_text("\n".join([*rows, f"name: x\ntopology: {{nodes: {{a: {{kind: linux, binds: {last}}}}}}}\n"]))
    assert files_of_topology(str(topology)) == [str(topology)]
    workload.write_text("\n".join([*rows, *merged, f"jobs: {{a: {{<<: *b{levels - 1}, trace: {last}}}}}\n"]))
    assert files_of(str(workload)) == [str(workload)]
    topology.write_text("name: x\ntopology: &t {nodes: {a: {binds: [x:/y], more: *t}}}\n")
    assert files_of_topology(str(topology)) == [str(topology)]
    assert time.process_time() - before < 60  # 9 ** levels steps take hours


def test_hidden_files_of_a_bound_directory_stay_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("conf/.git/config", "conf/.gitkeep", "conf/frr.conf"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "t.clab.yml").write_text("name: x\ntopology: {nodes: {a: {binds: ['conf:/etc/frr']}}}\n")
    monkeypatch.chdir(tmp_path)
    assert files_of_topology("t.clab.yml") == ["t.clab.yml", str(tmp_path / "conf/frr.conf")]
