"""A replay: its script, what its guests get, what they write, and what is said when one fails."""

from __future__ import annotations

import io
import os
import platform
import sys
import tarfile
import time
from itertools import pairwise
from pathlib import Path

import pytest

from heddle.base.events import Silent
from heddle.base.problems import InputError, MachineError
from heddle.cli.replay_verb import _check, needed_packages
from heddle.host.packages import VM, VM_BUILD, VM_BUILD_USER
from heddle.places.vm import hardware, replay
from heddle.places.vm.hardware import QEMU, Hardware, replay_command
from heddle.places.vm.image import DISK, INITRAMFS, KERNEL_FILE, VmImage
from heddle.places.vm.replay import Replayed, check_target, differing, read_inputs, unpack
from heddle.places.vm.replayguest import Lines, pack, report_of
from heddle.places.vm.replayscript import Line, Script, load_script, scripts
from tests.typed import typed

ONE = Hardware(1, 1024, 0, 1)


def script_of(path: Path, text: str) -> Script:
    path.write_text(text)
    return load_script(str(path), _check)


def problems_of(path: Path, text: str) -> list[str]:
    with pytest.raises(InputError) as error:
        script_of(path, text)
    return [f"{each.where}  {each.what} {each.why}" for each in error.value.problems]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "my.replay"


@pytest.fixture
def image(tmp_path: Path) -> VmImage:
    """An image whose disk is empty."""
    path = tmp_path / "a,b"
    path.mkdir()
    for name in (DISK, KERNEL_FILE, INITRAMFS, "image.json"):
        (path / name).write_bytes(b"")
    os.truncate(path / DISK, 8 << 20)
    return VmImage(path, "stable", "6.12", 1.0)


def test_a_script_is_verbs_sleeps_and_waits(file: Path) -> None:
    found = script_of(
        file,
        "# comment\n\n./inv up tiny\n  ./inv capture rtsw1:eth1 --out 'a b.pcapng' &\nsleep 0.5\n"
        "./inv run --format json > run.json\nwait\n",
    )
    assert (found.name, found.shown) == ("my", str(file))
    assert found.lines == (
        Line(3, "./inv up tiny", ("up", "tiny")),
        Line(
            4,
            "./inv capture rtsw1:eth1 --out 'a b.pcapng' &",
            ("capture", "rtsw1:eth1", "--out", "a b.pcapng"),
            background=True,
        ),
        Line(5, "sleep 0.5", sleep=0.5),
        Line(6, "./inv run --format json > run.json", ("run", "--format", "json"), to="run.json"),
        Line(7, "wait"),
    )
    assert found.lines[2].to_json() == {"number": 5, "text": "sleep 0.5", "sleep": 0.5}
    assert found.lines[4].to_json() == {"number": 7, "text": "wait", "wait": True}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ls -l", "ls is not possible in a replay"),
        ("./inv", "./inv names no verb"),
        ("./inv upp tiny", "upp is not a verb of Heddle"),
        ("./inv vm up", "vm is not possible in a replay"),
        ("./inv test unit", "test is not possible in a replay"),
        ("./inv up tiny --place vm", "--place vm is not possible in a replay"),
        ("./inv run --frob", "--frob is not a flag of run"),
        ("./inv run | tee x", "| is not possible in a replay, which no shell reads"),
        ("./inv run && ./inv down", "&& is not possible in a replay, which no shell reads"),
        ("./inv run 2>err", "2>err is not possible in a replay, which no shell reads"),
        ("./inv run > a/b", "> a/b is not a plain file name"),
        ("./inv run > output.txt", "> output.txt is written by the replay itself"),
        ("./inv run > a --iters 2", "> is not followed by one file at the end of the line"),
        ("./inv run > a > b", "> is not followed by one file at the end of the line"),
        ("./inv run 'x", "./inv run 'x cannot be read: no closing quotation"),
        ("sleep", "sleep is not a time above 0 and up to 3600 s"),
        ("sleep -1", "sleep -1 is not a time above 0 and up to 3600 s"),
        ("sleep inf", "sleep inf is not a time above 0 and up to 3600 s"),
        ("sleep 1 2", "sleep 1 2 is not a time above 0 and up to 3600 s"),
        ("wait 1", "wait is not possible in a replay"),
    ],
)
def test_a_line_that_is_wrong_is_named_with_its_number(file: Path, line: str, said: str) -> None:
    assert problems_of(file, f"./inv up tiny\n\n{line}\n") == [f"{file}:3  {said}"]


def test_all_wrong_lines_are_named_at_once(file: Path) -> None:
    found = problems_of(file, "ls\n./inv up tiny\n./inv run --frob --size x y\n")
    assert len(found) >= 3 and {each.split("  ")[0] for each in found} == {f"{file}:1", f"{file}:3"}


def test_a_file_that_is_no_script_is_named(file: Path, tmp_path: Path) -> None:
    assert problems_of(file, "# nothing\n") == [f"  {file} has no lines to run"]
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"is not text \(UTF-8\)"):
        load_script(str(file), _check)
    file.write_bytes(b"#" * (1 << 17))
    with pytest.raises(InputError, match="is larger than 64 KiB"):
        load_script(str(file), _check)
    with pytest.raises(InputError, match="is a directory"):
        load_script(str(tmp_path), _check)
    with pytest.raises(InputError, match=r"(?s)does not exist, and no replay of Heddle has this name.*tiny-ring"):
        load_script("tiny-rin", _check)


def test_the_scripts_of_traffic_are_right_and_found_by_name() -> None:
    assert "tiny-ring" in scripts()
    for name in scripts():
        found = load_script(name, _check)
        assert found.name == name and found.lines


def after(words: list[str], flag: str) -> list[str]:
    return [value for name, value in pairwise(words) if name == flag]


def test_nothing_comes_into_a_guest_from_outside(
    image: VmImage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "find_qemu", lambda: "qemu")
    results = tmp_path / "results"
    results.write_bytes(bytes(4 << 20))
    words = replay_command(image, ONE, results)
    assert not {"-netdev", "-drive", "-qmp", "-monitor", "-fw_cfg"} & set(words)
    assert [each.split(",")[0] for each in after(words, "-device")] == ["nvdimm", "nvdimm"]
    assert after(words, "-accel") == ["tcg,thread=single"] and after(words, "-smp") == ["1"]
    assert after(words, "-icount") == ["shift=0,sleep=off,rr=record,rrfile=/dev/null"] and after(words, "-seed") == [
        "1"
    ]
    assert after(words, "-rtc") == ["base=2026-01-01T00:00:00,clock=vm"]
    assert after(words, "-m") == ["1024M,slots=2,maxmem=2060M"]
    disk, made = after(words, "-object")
    path = str(image.path / DISK).replace(",", ",,")
    assert f"mem-path={path},size={8 << 20},share=off" in disk, "the guest changes a copy of the image"
    assert f"mem-path={results},size={4 << 20},share=on" in made


def test_the_project_in_a_guest_depends_on_names_and_contents_only(tmp_path: Path) -> None:
    first = replay._project_tar({"my.yml": b"name: my\n"})
    with tarfile.open(fileobj=io.BytesIO(first)) as tar:
        members = {each.name: each for each in tar}
    assert list(members) == [*sorted(set(members) - {"replay/my.yml"}), "replay/my.yml"]
    assert {(each.mtime, each.uid, each.uname) for each in members.values()} == {(0, 0, "")}
    assert {"heddle/tasks.py", "heddle/heddle/cli/program.py", "heddle/topologies/tiny.yml"} <= set(members)
    assert members["heddle/inv"].mode == 0o755 and members["heddle/tasks.py"].mode & 0o222 == 0o200
    assert not [name for name in members if name.startswith(("heddle/tests", "heddle/docs/ar"))]
    assert first == replay._project_tar({"my.yml": b"name: my\n"})


def test_inputs_have_names_of_their_own(tmp_path: Path, file: Path) -> None:
    lines = script_of(file, "./inv up my.yml > up.txt\n")
    (tmp_path / "my.yml").write_bytes(b"name: my\n")
    (tmp_path / "up.txt").write_bytes(b"")
    assert read_inputs({"my.yml": tmp_path / "my.yml"}, lines) == {"my.yml": b"name: my\n"}
    with pytest.raises(InputError) as error:
        read_inputs({"none": tmp_path / "none", "up.txt": tmp_path / "up.txt"}, lines)
    said = str(error.value)
    assert "--input none is not a file" in said and "--input up.txt has the name of another file of the replay" in said


def test_files_go_to_a_directory_that_is_new_or_empty(tmp_path: Path) -> None:
    check_target(tmp_path / "new", "new")
    (tmp_path / "empty").mkdir()
    check_target(tmp_path / "empty", "empty")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    for name, why in (("full", "is not empty"), ("full/file", "is a file")):
        with pytest.raises(InputError, match=f"--out {name} {why}"):
            check_target(tmp_path / name, name)


PROGRAM = """
import signal, sys, time
signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
print(*sys.argv[1:], flush=True)
if sys.argv[1] == "capture":
    open("started", "w").close()
    time.sleep(60)
sys.exit(int(sys.argv[1] == "down") * 3)
"""


@pytest.fixture
def lines(tmp_path: Path) -> Lines:
    """Runs lines with a program that prints its words; `capture` ends with SIGINT, `down` fails."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    work = tmp_path / "work"
    work.mkdir()
    return Lines([sys.executable, str(program)], work, lambda text: None)


def order(*lines: Line) -> list[dict[str, object]]:
    return [line.to_json() for line in lines]


def test_lines_run_in_order_and_the_background_is_ended_after_the_last(lines: Lines) -> None:
    def started() -> None:
        while not (lines.work / "started").exists():
            time.sleep(0.01)

    lines.tell = lambda text: started() if "line 2" in text else None
    began = time.monotonic()
    lines.run(
        order(
            Line(1, "./inv capture &", ("capture",), background=True),
            Line(2, "./inv run > run.txt", ("run", "x"), to="run.txt"),
        )
    )
    assert (lines.work / "run.txt").read_text() == "run x\n"
    said = (lines.work / "output.txt").read_text()
    assert said == "$ ./inv capture &\ncapture\n$ ./inv run > run.txt\n"
    report = report_of(lines, began)
    assert [(entry["line"], entry["code"]) for entry in report["lines"]] == [(1, 130), (2, 0)]
    assert report["failed"] is None and report["lines"][0]["ended"] == "at the end of the replay"


def test_a_line_that_fails_is_the_last_one(lines: Lines) -> None:
    began = time.monotonic()
    lines.run(order(Line(4, "./inv down", ("down",)), Line(5, "./inv up tiny", ("up", "tiny"))))
    assert (lines.work / "output.txt").read_text() == "$ ./inv down\ndown\n"
    assert report_of(lines, began)["failed"] == 4


def test_wait_gives_the_exit_code_of_a_line_in_the_background(lines: Lines) -> None:
    lines.run(order(Line(1, "./inv down &", ("down",), background=True), Line(2, "wait"), Line(3, "./inv up", ("up",))))
    assert lines.failed is not None and lines.failed["line"] == 1
    assert [entry["line"] for entry in lines.entries] == [1]


def test_results_are_sorted_without_links_and_inputs(tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "sub").mkdir(parents=True)
    for name in ("b", "sub/a", "my.yml"):
        (work / name).write_text(name)
    (work / "link").symlink_to("/etc/passwd")
    made = io.BytesIO()
    pack(work, ["my.yml"], made)
    made.write(bytes(1 << 20))  # the rest of the disk
    made.seek(0)
    assert unpack(made, tmp_path / "there") == ["b", "sub/a"]


def replayed(number: int, directory: Path, **files: str) -> Replayed:
    directory.mkdir(parents=True)
    for name, text in files.items():
        (directory / name).write_text(text)
    return Replayed(number, 1.0, directory, files, {})


def test_files_that_differ_are_kept_beside_those_of_the_first_guest(tmp_path: Path) -> None:
    found = [
        replayed(1, tmp_path / "1", a="x", b="y"),
        replayed(2, tmp_path / "2", a="x", b="y"),
        replayed(3, tmp_path / "3", a="z", c="y"),
    ]
    assert differing(found[:2]) == [] and differing(found) == ["a", "b", "c"]
    target = tmp_path / "out"
    target.mkdir()
    kept = [replay._kept(each, found[0], target) for each in found]
    assert [each.directory for each in kept] == [target, target, target / "boot-3"]
    assert sorted(path.name for path in target.iterdir()) == ["SHA256SUMS", "a", "b", "boot-3"]
    assert (target / "SHA256SUMS").read_text() == "x  a\ny  b\n"


def qemu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A program in the place of QEMU, for what cannot be had from QEMU when a test wants it."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / QEMU).write_text(f"#!/bin/sh\n{script}\n")
    (programs / QEMU).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the VM, and what QEMU loads in a replay, need x86_64")
@pytest.mark.parametrize(
    ("script", "minutes", "said"),
    [
        ("echo no memory >&2; exit 1", 1, "ended after 0 s (QEMU's exit code is 1)"),
        ("kill -9 $$", 1, "another process ended it, or the kernel because memory ran out"),
        ("echo 'heddle: line 1 of 1' >console.log; exec sleep 60", 0.01, "its last message: line 1 of 1"),
        ("exec sleep 60", 0.01, "did not end within 0.01 minutes; its last message: none"),
        ("exit 0", 1, "ended without results after 0 s"),
        ("echo 'Kernel panic - not syncing' >console.log", 1, "panicked without results after 0 s"),
        (r"printf '\037\213x' | dd of=results.img conv=notrunc 2>/dev/null", 1, "left results that cannot be read"),
        (
            'printf \'{"lines": [], "seconds": 1}\' >replay.json; tar -czf made replay.json;'
            "dd if=made of=results.img conv=notrunc 2>/dev/null; exec env -u LD_PRELOAD sleep 1",
            1,
            "saw the date of this machine, so the speed of this machine may show in its results",
        ),
    ],
)
def test_a_guest_that_fails_is_named_with_its_console_and_nothing_is_left(
    image: VmImage, tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch, script: str, minutes: float, said: str
) -> None:
    qemu(tmp_path, monkeypatch, script)
    monkeypatch.setattr(replay, "RESULT_BYTES", 1 << 20)
    monkeypatch.setattr("heddle.base.mounts.TEMPORARY", tmp_path)
    lines, target = script_of(file, "./inv up tiny\n"), tmp_path / "out"
    target.mkdir()
    with pytest.raises(MachineError) as error:
        replay.replay(image, lines, {}, ONE, 2, target, minutes, Silent())
    assert said in str(error.value) and "of the replay" in str(error.value)
    assert list(target.iterdir()) == [] and list(tmp_path.glob("heddle-replay-*")) == []


def test_an_image_of_another_user_is_named(image: VmImage, tmp_path: Path, file: Path) -> None:
    lines = script_of(file, "./inv up tiny\n")
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(os, "access", lambda path, mode: False)
        with pytest.raises(MachineError, match="is not writable for this user"):
            replay.replay(image, lines, {}, ONE, 1, tmp_path, 1, Silent())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--out", "x", "--times", "0"), "--times 0 is not between 1 and 100"),
        (("--out", "x", "--minutes", "0"), "--minutes 0 is not between 1 and 1440"),
        (("--out", "x", "--memory", "512"), "--memory 512 is not between 1024"),
        (("--out", "x", "--instruction-ns", "3"), "--instruction-ns 3 is not a power of 2 from 1 to 1024"),
        (("--out", "x", "--seed", "-1"), "--seed -1 is not between 0 and 18446744073709551615"),
        (("--out", "x", "--kernel", "newest"), "--kernel newest is not a kernel of the VM"),
        ((), "write ./inv replay tiny-ring --out DIRECTORY"),
        (("--out", "x", "--input", "none.yml"), "--input none.yml is not a file"),
    ],
)
def test_wrong_words_are_named_before_an_image_is_made(
    words: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEDDLE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("heddle.host.packages.missing", lambda names: [])
    done = typed("replay", "tiny-ring", *words, cwd=tmp_path)
    assert done.returncode == 2 and said in done.stderr, done.stderr
    assert not (tmp_path / "cache").exists() and not (tmp_path / "x").exists()


def test_a_replay_asks_for_qemu_and_for_an_image(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEDDLE_CACHE_DIR", str(tmp_path / "cache"))
    tools = VM_BUILD if os.geteuid() == 0 else VM_BUILD_USER
    assert needed_packages({"kernel": ""}) == (*VM, *tools)
    monkeypatch.setattr("heddle.places.vm.image.find_image", lambda kernel: object())
    assert needed_packages({"kernel": "stable"}) == (*VM,)
