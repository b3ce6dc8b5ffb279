"""Files of nccl-tests beside runs: which are read, what is said of others, and what of two curves is compared."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heddle.base.problems import InputError
from heddle.cli.program import main
from heddle.runs.curve import BusbwCurve, read_curve, shapes_of
from heddle.runs.exports import EXPORTS
from heddle.runs.exports.asked import Asked
from heddle.runs.runtable import SizeRow
from tests.unit import run_samples as samples
from tests.unit.kept_runs import keep

GROUP = "time   algbw   busbw  #wrong"
NAMES = f"#       size         count      type   redop    root     {GROUP}     {GROUP}"
UNITS = "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)"
START = "# nccl-tests version 2.19.6 nccl-headers=23007 nccl-library=23007\n# Collective test starting: all_gather_perf"
RANKS = "".join(f"#  Rank {each:2d} Group  0 Pid  71 on  node device  {each} [0000:1b:00] A GPU\n" for each in (0, 1))
ROWS = ("65536 8192 float none -1 30 2.18 1.09 0 30 2.18 1.11 0", "131072 16384 float none -1 41 3 2.18 0 4 3 2.2 0")
TEXT = "\n".join([START, RANKS.rstrip(), NAMES, UNITS, *ROWS, "# Out of bounds values : 0 OK", "#\n"])
CURVE = {65536: 1.09, 131072: 2.18}


def read(tmp_path: Path, text: str) -> BusbwCurve:
    path = tmp_path / "out.txt"
    path.write_text(text)
    return read_curve(str(path))


def said_of(tmp_path: Path, text: str) -> str:
    with pytest.raises(InputError) as error:
        read(tmp_path, text)
    return str(error.value).replace(f"{tmp_path}/", "")


def test_text_is_read_by_the_names_of_its_columns(tmp_path: Path) -> None:
    assert read(tmp_path, TEXT) == BusbwCurve(str(tmp_path / "out.txt"), "all-gather", 2, CURVE)
    iterations = "i_min   i_max   i_p99   i_cv%"
    more = (
        TEXT.replace(GROUP, f"{GROUP}  {iterations}")
        .replace(" 0 30", " 0 1 2 3 4 30")
        .replace(" 0 4 ", " 0 1 2 3 4 4 ")
    )
    assert read(tmp_path, more).busbw == CURVE, "-I 1"
    stamped = "\n".join(line + " 2026-11-27 10:00:00" if line in ROWS else line for line in TEXT.splitlines())
    assert read(tmp_path, stamped).busbw == CURVE, "-S 1"
    assert read(tmp_path, TEXT.replace("time ", "cputime ")).busbw == CURVE, "-C 1"
    cycles = TEXT.replace(ROWS[1], ROWS[0].replace("1.09", "1.19"))
    assert read(tmp_path, cycles).busbw == {65536: pytest.approx(1.14)}, "-N 2: the mean"
    in_place = TEXT.replace(" 30 2.18 1.09 0 ", " N/A N/A N/A N/A ")
    assert read(tmp_path, in_place).busbw[65536] == 1.11


@pytest.mark.parametrize(
    "before",
    [
        "[1,0]<stdout>:", "[1,0]<stdout>: ", "[prterun-host-71@1,0]<stdout>: ",  # mpirun --tag-output
        "2026-03-04T05:06:07.123456789Z ", "2026-03-04T05:06:07+01:00 ",  # kubectl logs --timestamps
        "[pod/nccl-test-launcher-x7/main] ", "[pod/a/b] 2026-03-04T05:06:07.1Z ",  # kubectl logs --prefix
        "0: ", " 0: ", "00: ",  # srun -l
        "node-1.lab: ", "[0] ", "[default0]:", "launcher-1  | ",  # pdsh, hydra, torchrun, docker compose
        "Mar  4 05:06:07 ", "Mar 04 05:06:07 node1 srun[123]: ", "05:06:07 ",  # ts, journalctl
        "    ", "\t", "\x1b[32m", "\x1b[0;1m  ",
        "Thu Nov 28 10:00:00 2026[1,0]<stdout>:", "nccl-launcher-x7 main ",  # mpirun --timestamp-output, stern
        "2026-11-28T10:00:00.0Z stdout F ", "2026-11-28T10:00:00+0000 n1 run.sh[12]: ",  # CRI, journalctl -o short-iso
        "1772600767.123 ", "     7\t", "INFO:root:", "bench\trun\t2026-03-04T05:06:07.1Z ",  # ts %.s, cat -n, a logger
    ],
)  # fmt: skip
@pytest.mark.parametrize("end", ["\n", "\r\n", "\x1b[0m\n"])
def test_lines_may_have_what_other_programs_write_before_them(tmp_path: Path, before: str, end: str) -> None:
    others = "[host:1] of another program\n1,2: and another\n[node0:12] 3 more processes have sent help\n1: \n"
    tagged = others + "".join(f"{before}{line}{end}" for line in TEXT.splitlines())
    found = read(tmp_path, tagged)
    assert (found.busbw, found.ranks, found.collective) == (CURVE, 2, "all-gather")
    cut = "".join(f"{before}{line}{end}" for line in TEXT[: TEXT.index("3 2.18 0")].splitlines())
    assert said_of(tmp_path, cut).startswith("out.txt:8  the row has 6 columns")


@pytest.mark.parametrize("key", ["log", "message"])
def test_lines_of_a_logger_that_writes_json_are_read(tmp_path: Path, key: str) -> None:
    lines = [json.dumps({key: f"{line}\n", "stream": "stdout", "time": "2026"}) for line in TEXT.splitlines()]
    found = read(tmp_path, "\n".join(lines))
    assert (found.busbw, found.ranks, found.collective) == (CURVE, 2, "all-gather")


def test_words_of_another_program_are_no_row_and_a_rank_counts_once(tmp_path: Path) -> None:
    others = "\n".join(["12 GPUs on 2 nodes", "step 65536 8192 done", "10:00 1 2 3 4 5 6 7 8 9 10 11 12 13 14"])
    found = read(tmp_path, "".join(f"1: {line}\n0: {line}\n" for line in f"{others}\n{TEXT}".splitlines()))
    assert (found.busbw, found.ranks) == (CURVE, 2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[a] " * (1 << 20), "has no table of nccl-tests"),
        (f"{NAMES}\n" + "1 1 x x x x x x " * (1 << 18), "the row has no number for size or busbw"),
        (f"{NAMES}\n" + "[a] " * (1 << 20) + ROWS[0], "has no measured size"),
        (f"{NAMES}\n" + f"{ROWS[0]}\n" * (1 << 20), "has more than 1048576 lines"),
        ('{"version":3,"results":[' + "[]," * (3 << 19) + "1]}", "has more than 3145728 values"),
    ],
)
def test_a_file_that_is_made_to_take_time_or_memory_is_refused_soon(tmp_path: Path, text: str, said: str) -> None:
    before = time.process_time()
    assert said in said_of(tmp_path, text)
    assert time.process_time() - before < 20  # with the square of the length it would be hours


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_text_in_another_encoding_is_read(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "out.txt").write_bytes(TEXT.encode(encoding))
    assert read_curve(str(tmp_path / "out.txt")).busbw == CURVE


def test_a_run_is_read_back_from_its_own_table_and_json(tmp_path: Path) -> None:
    run = keep(tmp_path, 7, samples.record())
    wanted = BusbwCurve.of_run(run)
    assert (wanted.name, wanted.k, wanted.busbw) == ("run 0007 of lab zone", 4000, {1 << 16: 0.015, 1 << 22: 0.03})
    for text in (EXPORTS["json"].written(run, Asked()).decode(), run.result.table()):
        assert replace(read(tmp_path, text), name=wanted.name, k=4000) == wanted


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (" \n", "out.txt is empty"),
        ("hello\n", "out.txt has no table of nccl-tests"),
        (TEXT[: TEXT.index("3 2.18 0")], "out.txt:8  the row has 6 columns, and 13 are named above\n"),
        (TEXT.replace("1.09", "x"), "out.txt:7  the row has no number for size or busbw: 65536, x"),
        (TEXT[: TEXT.index(ROWS[0])], "out.txt has no measured size"),
        (TEXT.replace("1.09", "0").replace("2.18", "0"), "out.txt has no busbw above 0"),
        ('{"version":3,"results":[{"size":1,\n"out', "out.txt:2  the file is no JSON document"),
        ('{"version":2,"results":[]}', "out.txt has version 2 of nccl-tests' JSON, and only 3 is read"),
        ('{"results":[]}', "out.txt is JSON, but not of nccl-tests"),
        ("[1]", "out.txt has no table of nccl-tests"),
        ('{"version":3,"results":[]}', "out.txt has no measured size"),
        ('{"version":3,"results":[{"size":1,"out_of_place":{}}]}', "out.txt  results[0] has no size, or no bus_bw"),
        ('{"version":3,"results":[{"size":1e999,"out_of_place":{"bus_bw":1}}]}', "out.txt  results[0] has no size"),
        ('{"version":3,"results":[{"size":8,"out_of_place":{"bus_bw":NaN}}]}', "out.txt has a busbw that is not"),
        (TEXT.replace("1.09", "inf"), "out.txt has a busbw that is not a finite number"),
        ('{"version":' + "[" * 100_000, "out.txt:1  the file is no JSON document"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_said_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    assert said_of(tmp_path, text).startswith(said)


def test_shapes_are_compared_at_the_common_sizes_and_heights_are_not() -> None:
    mine = BusbwCurve("mine", "all-reduce", 8, {1 << 10: 10.0, 1 << 20: 100.0, 1 << 30: 400.0})
    emulated = BusbwCurve("run", "all-reduce", 4, {1 << 10: 0.005, 1 << 20: 0.01}, k=4000)
    found = shapes_of(mine, emulated)
    assert [(each.size, each.a_share, each.b_share) for each in found.points] == [(1 << 10, 0.1, 0.5), (1 << 20, 1, 1)]
    assert (found.half_sizes, found.left_out, found.farthest.size) == ((1 << 20, 1 << 10), (1 << 30,), 1 << 10)
    assert found.notes == ("the numbers of ranks differ (8, 4): more ranks need larger sizes",)
    higher = replace(mine, busbw={size: 1000 * value for size, value in mine.busbw.items()})
    assert shapes_of(higher, emulated).farthest.apart == pytest.approx(found.farthest.apart)
    with pytest.raises(InputError, match="have different collectives"):
        shapes_of(mine, replace(emulated, collective="all-gather"))
    with pytest.raises(InputError, match="have no size in common\n  hint: measure the sizes of the first: -b 1024 -e"):
        shapes_of(mine, replace(emulated, busbw={3: 1.0}))


def in_place_wrong() -> tuple[SizeRow, ...]:
    """Rows of which one has wrong elements in place, and none out of place."""
    first, *others = samples.result().rows
    return (replace(first, in_place=replace(first.first, wrong=14)), *others)


def test_wrong_elements_in_json_are_read(tmp_path: Path) -> None:
    record = samples.record(replace(samples.OPTIONS, in_place="both"))
    run = keep(tmp_path, 7, replace(record, rows=in_place_wrong()))
    text = EXPORTS["json"].written(run, Asked()).decode()
    assert read(tmp_path, text).unfit == "14 wrong elements"
    assert read(tmp_path, text.replace('"count":14', '"count":0')).unfit == "14 wrong elements"
    assert read(tmp_path, text.replace('"nwrong":14', '"nwrong":0')).unfit == "14 wrong elements"
    assert read(tmp_path, text.replace('"nwrong":14', '"nwrong":0').replace('"count":14', '"count":0')).unfit == ""


def test_compare_takes_a_file_in_the_place_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import tasks

    run, file = keep(tmp_path, 7, samples.record()), tmp_path / "out.txt"
    file.write_text(TEXT.replace("all_gather", "all_reduce"))

    def inv(*words: str) -> tuple[int, Any]:
        code = main(vars(tasks), ["inv", "compare", *words])
        return code, capsys.readouterr()

    code, said = inv(str(file), str(run.path))
    assert (code, "Only the shapes are compared" in said.out, "k = 4000" in said.out) == (0, True, True)
    code, said = inv(str(run.path), str(file), "--format", "json")
    assert (code, json.loads(said.out)["left_out"]) == (0, [131072, 1 << 22])
    # Wrong data of either side are named, and fail.
    bad = keep(tmp_path, 8, replace(samples.record(), rows=in_place_wrong()))
    for pair in ((str(file), str(bad.path)), (str(bad.path), str(file))):
        code, said = inv(*pair)
        assert (code, "note: no verdict rests on run 0008 of lab zone: 14 wrong elements" in said.out) == (1, True)
    rows = file.read_text()
    for text in (
        rows.replace(" : 0 OK", " : 8 FAILED"),
        rows.replace("1.11 0", "1.11 8"),
        rows.replace(" 1.09 0 ", " 1.09 8e+00 "),
    ):
        file.write_text(text)
        code, said = inv(str(file), str(run.path), "--format", "json")
        document = json.loads(said.out)
        assert (code, document["ok"], document["a"]["unfit"]) == (1, False, "8 wrong elements")
    code, said = inv(str(file), str(run.path), "--report")
    assert (code, "is for two runs" in said.err) == (2, True)
    code, said = inv("gone.json", str(run.path))
    assert (code, "gone.json cannot be read: No such file" in said.err) == (2, True)
