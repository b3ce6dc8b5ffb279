"""Traces of other tools become one list of parts: what is read, what is left out, and every error names its place."""

from __future__ import annotations

import gzip
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from heddle.base.problems import InputError
from heddle.endpoints.workloadfile import files_of, load_workload
from heddle.traffic.plan import bound_steps, build_plan
from heddle.traffic.sequence import PartSequence, note_of
from heddle.traffic.traces import Reading, read_trace
from heddle.traffic.workload import Job
from heddle_plugins.readers.traces import goal
from tests.answers import Answers
from tests.machine import patience
from tests.traces import (
    COLL,
    COMP,
    MATRIX,
    ZONE,
    attribute,
    block,
    chakra,
    node,
    read,
    refused,
    told,
    written,
)

GOAL = """num_ranks 2
// a comment
rank 0 {
  l1: calc 2000
  l2: send 64b to 1 tag 7 cpu 1 nic 0
  l2 requires l1  /* a comment
  of two lines */
  recv 8b from 1
}
rank 1 { l1: recv 64b from 0 tag 7; l2: calc 5; l2 requires l1; l3: send 8b to 0; l3 irequires l2 }
"""


class TestGoal:
    def test_operations_of_each_rank(self, tmp_path: Path) -> None:
        trace, notes = read(written(tmp_path, "x.goal", GOAL))
        assert sorted(map(told, trace.parts)) == [
            ("broadcast", (0, 1), 64, 0, (0,)), ("broadcast", (1, 0), 8, 0, (1,)),
            ("compute", (0,), 0, 2e-6, ()), ("compute", (1,), 0, 5e-9, (1,)),
        ]  # fmt: skip
        assert notes == ["1 irequires of a receive or a computation is taken as what that waits for"]


class TestHtsim:
    def test_starts_and_triggers(self, tmp_path: Path) -> None:
        trace, notes = read(written(tmp_path, "x.cm", MATRIX))
        parts = trace.parts
        by = {(each.ranks, each.size_bytes): number for number, each in enumerate(parts)}
        waits = {
            key: [(parts[a].ranks, parts[a].size_bytes, parts[a].seconds) for a in parts[n].after]
            for key, n in by.items()
        }
        assert (trace.ranks, notes) == (4, ["1 priorities are left out"])
        assert waits[(0, 1), 4000] == [((0,), 0, 1e-6)]
        assert waits[(0, 2), 8000] == [((1, 0), 4, 0)]  # the answer to the first
        assert waits[(2, 3), 4] == [((0, 2), 8000, 0)]  # node 2 tells node 3
        assert waits[(3, 0), 4000] == [((2, 3), 4, 0)]
        assert waits[(3, 1), 4000] == [((3,), 0, 2e-6)]

    def test_nodes_without_connections_are_left_out_on_request(self, tmp_path: Path) -> None:
        text = "Nodes 99\nConnections 2\n7->50 start 5e6 size 8\n9->50 start 0 size 4\n"
        trace, notes = read(written(tmp_path, "x.cm", text), skip_idle=True)
        assert (trace.ranks, notes) == (3, ["96 ranks that neither send nor receive are left out"])
        assert sorted(map(told, trace.parts)) == [
            ("broadcast", (0, 2), 8, 0, (1,)), ("broadcast", (1, 2), 4, 0, ()), ("compute", (0,), 0, 5e-6, ()),
        ]  # fmt: skip


FLOWS = """3

0 3 3 100 8000 2
3 1 3 200 4000 2.0005
0 1 1 100 1000 2.0005

First line: the number of flows.
"""
AS_MATRIX = """Nodes 4
Connections 3
0->3 start 0 size 8000
3->1 start 5e8 size 4000
0->1 start 5e8 size 1000
"""


class TestHpcc:
    def test_flows_with_their_starts_after_the_first(self, tmp_path: Path) -> None:
        trace, notes = read(written(tmp_path, "flow.txt", FLOWS))
        assert sorted(map(told, trace.parts)) == [
            ("broadcast", (0, 1), 1000, 0, (1,)), ("broadcast", (0, 3), 8000, 0, ()),
            ("broadcast", (3, 1), 4000, 0, (3,)), ("compute", (0,), 0, 5e-4, ()), ("compute", (3,), 0, 5e-4, ()),
        ]  # fmt: skip
        assert trace.ranks == 4 and notes == [
            "1 priority groups other than 3 are left out", "1 lines behind the flows are left out",
            "1 start is taken for 0: 2 s, of the first flow",
        ]  # fmt: skip
        assert [*map(told, trace.parts)] == [*map(told, read(written(tmp_path, "x.cm", AS_MATRIX))[0].parts)]

    def test_a_million_flows_are_refused_before_they_are_read(self, tmp_path: Path) -> None:
        before = time.process_time()
        assert "1000000 flows are not 1 to 65536" in refused(
            written(tmp_path, "flow.txt", "1000000\n" + "0 1 3 100 8000 2\n" * 1_000_000)
        )
        assert time.process_time() - before < patience(5)


HEADER = (
    "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 2 pp: 2 vpp: 1 ga: 1 all_gpus: 16 pp_comm 4096"
)
LAYERS = """2
attention -1 1000 ALLGATHER 8192 2000 REDUCESCATTER 8192 3000 ALLREDUCE_DP_EP 4096 100
mlp\t-1\t1\tALLTOALL_EP\t4096\t1\tNONE\t0\t1\tALLREDUCE\t4096\t100
"""


class TestSimAI:
    def test_groups_and_the_order_of_an_iteration(self, tmp_path: Path) -> None:
        trace, notes = read(written(tmp_path, "x.txt", f"{HEADER}\n{LAYERS}"))
        found: dict[str, list[tuple[int, ...]]] = {}
        for part in trace.parts:
            if part.pattern is not None:
                found.setdefault(f"{part.name} {part.pattern.collective}", []).append(part.ranks)
        assert (trace.ranks, [*found]) == (16, [
            "layer 1 forward all-gather", "layer 2 forward all-to-all", "pipeline forward broadcast",
            "layer 2 weight gradient all-reduce", "layer 1 input gradient reduce-scatter",
            "layer 1 weight gradient all-reduce", "pipeline backward broadcast",
        ])  # fmt: skip
        assert found["layer 1 forward all-gather"][:2] == [(0, 1), (2, 3)]  # tensor
        assert found["layer 2 forward all-to-all"][:3] == [(0, 2), (4, 6), (1, 3)]  # expert
        assert found["layer 2 weight gradient all-reduce"] == [
            (0, 2, 4, 6),
            (1, 3, 5, 7),
            (8, 10, 12, 14),
            (9, 11, 13, 15),
        ]
        assert found["layer 1 weight gradient all-reduce"][:2] == [(0, 4), (2, 6)]  # data, the same experts
        assert found["pipeline forward broadcast"][0] == (0, 8)
        assert notes == ["1 pipeline transfer of each direction stands for all of an iteration"]
        assert trace.parts[-1].seconds == pytest.approx(200e-9)
        last = {n for n, part in enumerate(trace.parts) if "weight" in part.name and part.pattern}
        assert last <= {*trace.parts[-1].after}  # the update waits for all gradients

    def test_too_many_operations_are_counted_and_the_hint_works(self, tmp_path: Path) -> None:
        head = "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 16 pp: 12 vpp: 8 ga: 24 all_gpus: 9216 "
        layer = "mlp -1 1000 ALLGATHER 8192 1000 REDUCESCATTER 8192 1000 ALLTOALL_EP 8192 100"

        def text(layers: int) -> str:
            return f"{head}checkpoints: 0 checkpoint_initiates: 0 pp_comm 50331648\n{layers}\n" + f"{layer}\n" * layers

        why = refused(written(tmp_path, "x.txt", text(1789)))
        operations = 1789 * (2 * 9216 // 2 + 9216 // 16)  # of each layer two in pairs, one in groups of 16
        assert f"has 1,789 layers, whose collectives are {operations:,} operations among 9,216 ranks" in why
        (left,) = re.findall(r"shorten the file to (\d+) layers, with ranks: 384, the fewest", why)
        assert read(written(tmp_path, "x.txt", text(int(left))), ranks=384)[0].ranks == 384
        (ranks,) = re.findall(r"set ranks to ([\d,]+) or less", refused(written(tmp_path, "x.txt", text(23))))
        most = int(ranks.replace(",", ""))
        assert most > 2000 and read(written(tmp_path, "x.txt", text(23)), ranks=most)[0].ranks == most

    def test_fewer_ranks_than_the_trace(self, tmp_path: Path) -> None:
        trace, _ = read(written(tmp_path, "x.txt", f"{HEADER}\n{LAYERS}"), ranks=8)
        assert {rank for part in trace.parts for rank in part.ranks} == {*range(8)}


class TestWorkloads:
    """A trace as a workload: in a file with other keys, or as a word."""

    def job(self, workload: str) -> Job:
        (found,) = load_workload(workload).workload.jobs
        return found

    def test_a_name_of_a_file_with_keys(self, tmp_path: Path) -> None:
        (file,) = written(tmp_path, "x.cm", MATRIX)
        job = self.job(f"{file},qps=4,scale=1/4,time_scale=2")
        assert (job.options.qps, job.options.ranks, job.options.collective) == (4, 4, "steps")
        assert note_of(job.options.steps) == f"{file}: sizes x 1/4, times x 2; 1 priorities are left out"
        endpoints = load_workload(file).workload.endpoints(ZONE)[0]
        sequence = bound_steps(job.options, endpoints, 1000).pattern
        assert isinstance(sequence, PartSequence)
        assert "0->1: transfer of 1000 B, 2 ranks" in sequence.lines()
        found = {(part.ranks, part.size_bytes, round(part.seconds, 9)) for part in sequence.parts}
        assert {((0, 1), 1000, 0), ((0, 2), 2000, 0), ((0,), 0, 2e-3), ((3,), 0, 4e-3)} <= found  # times x k
        assert build_plan(ZONE, job.options).pattern.volume(4, 0) >= 5000 // 4

    def test_a_fabric_that_is_too_small_is_named_without_a_wrong_hint(self, tmp_path: Path) -> None:
        (file,) = written(tmp_path, "x.cm", "Nodes 99\nConnections 1\n7->50 start 0 size 8\n")
        with pytest.raises(
            InputError, match=r"ranks: 99 is more than the 16 NICs(.|\n)*hint: use a fabric with 99 NICs"
        ):
            load_workload(file).workload.endpoints(ZONE)

    def test_keys_of_a_job_and_the_files_that_it_needs(self, tmp_path: Path) -> None:
        coll = attribute("comm_type", 0) + attribute("comm_size", 4096) + attribute("pg_name", "0")
        files = chakra(tmp_path, [node(1, COLL, more=coll)], [node(1, COLL, more=coll)], [], [node(9, COMP, micros=1)])
        (tmp_path / "g.json").write_text('{"0": [0, 1]}')
        text = "qps: 2\njobs:\n  a:\n    trace: x\n    trace_groups: g.json\n    skip_idle: true\n    ranks: [3, 5]\n"
        (path,) = written(tmp_path, "w.yml", text)
        job = self.job(path)
        assert (job.options.qps, job.options.ranks, job.slots) == (2, 2, (3, 5))
        needed = [*files, str(tmp_path / "g.json")]
        assert files_of(path) == [path, *needed]
        assert files_of(f"{tmp_path}/x.et,trace_groups={tmp_path}/g.json") == needed
        written(
            tmp_path, "w.yml", text.replace("trace: x", "trace: [x.0.et, x.1.et]").replace("    skip_idle: true\n", "")
        )
        assert self.job(path).options.ranks == 2
        assert files_of(path) == [path, *files[:2], needed[-1]]

    def test_errors_have_the_line(self, tmp_path: Path, answers: Answers) -> None:
        def load(keys: str) -> object:
            written(tmp_path, "x.cm", MATRIX)
            written(tmp_path, "y.cm", "Knots 5")
            (path,) = written(tmp_path, "w.yml", keys)
            return load_workload(path)

        answers(load)


def test_other_files_are_refused(tmp_path: Path) -> None:
    assert "has a name with an unknown end" in refused(written(tmp_path, "x.trace", ""))
    assert "but only Chakra has one for each rank" in refused([str(tmp_path / "x.cm"), str(tmp_path / "y.cm")])


def packed(path: Path, data: bytes) -> str:
    path.write_bytes(gzip.compress(data))
    return str(path)


MIB = 1 << 20
SOME = 1 << 17  # the limit of fields in these tests; that of dependencies is a quarter of it
BOMBS: Mapping[str, tuple[str, Callable[[], bytes], str]] = {
    "lists": ("a.0.json.gz", lambda: b"[" + b"[]," * (60 * MIB // 3) + b"0]", "larger than 16 MiB"),
    "values": ("a.0.json", lambda: b"[" + b"0," * (6 * MIB) + b"0]", "too many values"),
    "values of messages": ("a.0.json", lambda: b"{} " * (5 * MIB), "too many values"),
    "objects": ("a.0.json", lambda: b"[" + b'{"a":1},' * (3 * MIB) + b"0]", "too many values"),
    "zeros": ("a.0.et.gz", lambda: bytes(80 * MIB), "larger than 16 MiB"),
    "fields": ("a.0.et", lambda: b"\0" + 3 * block(0, b"\x08\x01" * (SOME // 2))[1:], "fields"),
    "fields of attributes": ("a.0.et", lambda: b"\0" + 3 * block(0, block(10, b"\x08\x01" * (SOME // 2)))[1:],
                             "fields"),
    "a wide operation": ("wide.goal", lambda: b"num_ranks 2\nrank 0 {\na: calc 1\nb: calc 1\n" +
                         b"b requires a\n" * 40_000 + b"}", "dependencies"),
    "dependencies that double": ("twice.goal", lambda: b"num_ranks 2\nrank 0 {\n" + b"".join(
        b"a%d: calc 1\n" % n for n in range(178)) + b"".join(
        b"a%d requires a%d\na%d irequires a%d\n" % (n, m, n, n - 1) for n in range(1, 178) for m in range(n)) +
        b"}\nrank 1 {}", "dependencies"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BOMBS)
def test_a_small_trace_cannot_take_minutes(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heddle_plugins.readers.traces.chakra.Counted.left", SOME)
    monkeypatch.setattr(goal, "_MOST_DEPS", SOME // 4)
    name, data, why = BOMBS[kind]
    typed = packed(tmp_path / name, data()) if name.endswith(".gz") else str(tmp_path / name)
    if not name.endswith(".gz"):
        (tmp_path / name).write_bytes(data())
    before = time.process_time()
    with pytest.raises(InputError, match=why):
        read_trace([typed], Reading(ranks=2))
    assert time.process_time() - before < patience(10)


def test_a_trace_with_a_million_orders_of_one_operation_is_read_in_linear_time(tmp_path: Path) -> None:
    rows = "".join(f"a{n}: calc 1\nlast requires a{n}\n" for n in range(30_000))
    (tmp_path / "w.goal").write_text(
        f"num_ranks 2\nrank 0 {{\nlast: send 8b to 1\n{rows}}}\nrank 1 {{ recv 8b from 0 }}\n"
    )
    before = time.process_time()
    assert read_trace([str(tmp_path / "w.goal")], Reading(ranks=2)).ranks == 2
    assert time.process_time() - before < patience(15)  # a step of 30 ns for each pair of orders takes as long


def test_errors_name_the_line(tmp_path: Path, answers: Answers) -> None:
    texts = {"x.goal": GOAL, "x.cm": MATRIX, "x.txt": f"{HEADER}\n{LAYERS}", "flow.txt": FLOWS}

    def error(name: str, old: str, new: str) -> str:
        assert old in texts[name]
        return refused(written(tmp_path, name, texts[name].replace(old, new)))

    answers(error)
