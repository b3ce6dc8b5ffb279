"""Traces of other tools become one list of parts: what is read, what is left out, and every error names its place."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from heddle.base.problems import InputError
from heddle.endpoints.workloadfile import files_of, load_workload
from heddle.fabric.fabricfile import load_fabric
from heddle.traffic.bound import bound_steps
from heddle.traffic.parts import Part, note_of
from heddle.traffic.plan import build_plan
from heddle.traffic.sequence import PartSequence
from heddle.traffic.traces import Reading, Trace, read_trace, trace_files
from heddle.traffic.workload import Job

INTEGERS = {  # of AttributeProto: how a number is encoded
    "int32_val": 7, "int64_val": 9, "uint32_val": 11, "uint64_val": 13, "sint32_val": 15, "sint64_val": 17,
    "fixed32_val": 19, "fixed64_val": 21, "sfixed32_val": 23, "sfixed64_val": 25,
}  # fmt: skip
ZONE = load_fabric("zone").fabric
COMP, SEND, RECV, COLL = 4, 5, 6, 7


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def block(field: int, data: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(data)) + data


def attribute(name: str, value: int | str, kind: str = "int64_val") -> bytes:
    if isinstance(value, str):
        return block(10, block(1, name.encode()) + block(29, value.encode()))
    field = INTEGERS[kind]
    if kind.startswith("sint"):
        value = value << 1 ^ value >> 63
    if "fixed" in kind:
        width = 4 if kind.endswith("32_val") else 8
        coded = varint(field << 3 | (5 if width == 4 else 1)) + (value & (1 << 8 * width) - 1).to_bytes(width, "little")
    else:
        coded = number(field, value)
    return block(10, block(1, name.encode()) + coded)


def node(key: int, kind: int, deps: Sequence[int] = (), micros: int = 0, more: bytes = b"", **values: Any) -> bytes:
    deps_coded = block(5, b"".join(map(varint, deps))) if deps else b""
    data = number(1, key) + block(2, b"a node") + number(3, kind) + deps_coded + number(7, micros) + more
    return data + b"".join(attribute(name, value) for name, value in values.items())


def et(nodes: Iterable[bytes]) -> bytes:
    return b"".join(varint(len(each)) + each for each in (block(1, b"0.0.4"), *nodes))


def chakra(place: Path, *ranks: Sequence[bytes]) -> list[str]:
    for rank, nodes in enumerate(ranks):
        (place / f"x.{rank}.et").write_bytes(et(nodes))
    return trace_files(str(place / "x.et"))


def written(place: Path, name: str, text: str) -> list[str]:
    (place / name).write_text(text)
    return [str(place / name)]


def read(files: Sequence[str], **keys: Any) -> tuple[Trace, list[str]]:
    reading = Reading(**keys)
    return read_trace(files, reading), reading.noted()


def refused(files: Sequence[str], **keys: Any) -> str:
    with pytest.raises(InputError) as error:
        read(files, **keys)
    return str(error.value).replace(str(Path(files[0]).parent) + "/", "")


def told(part: Part) -> tuple[str, tuple[int, ...], int, float, tuple[int, ...]]:
    name = part.pattern.collective if part.pattern else "compute"
    return name, part.ranks, part.size_bytes, round(part.seconds, 9), part.after


class TestChakra:
    @pytest.mark.parametrize("kind", INTEGERS)
    def test_a_collective_among_all_ranks_with_any_type_of_integer(self, tmp_path: Path, kind: str) -> None:
        more = attribute("comm_type", 2, kind) + attribute("comm_size", 1 << 20, kind)
        trace, notes = read(chakra(tmp_path, *[[node(rank, COLL, more=more)] for rank in range(4)]))
        assert (trace.ranks, notes) == (4, [])
        assert [told(each) for each in trace.parts] == [("all-gather", (0, 1, 2, 3), 4 << 20, 0, ())]  # 1 MiB of each

    def test_a_compressed_file_that_all_ranks_run_with_scaled_sizes_and_times(self, tmp_path: Path) -> None:
        nodes = [node(1, COMP, micros=300), node(2, COMP, [1], 700), node(3, COLL, [2], comm_type=0, comm_size=4 << 20)]
        (tmp_path / "one.et").write_bytes(gzip.compress(et(nodes)))
        files = [str(tmp_path / "one.et")]
        trace, _ = read(files, ranks=2, size_scale=Fraction(1, 1024), time_scale=Fraction(1, 2))
        assert sorted(map(told, trace.parts)) == [
            ("all-reduce", (0, 1), 4096, 0, (0, 1)), ("compute", (0,), 0, 0.0005, ()), ("compute", (1,), 0, 0.0005, ()),
        ]  # fmt: skip
        assert "is of one rank" in refused(files)
        assert "has no nodes" in refused(written(tmp_path, "x.json", "[]"))

    def test_sends_end_with_an_answer_if_something_waits_for_them(self, tmp_path: Path) -> None:
        send = node(1, SEND, comm_dst=1, comm_tag=5, comm_size=64)
        then = node(2, COMP, [1], 10)
        trace, _ = read(chakra(tmp_path, [send, then], [node(9, RECV, comm_src=0, comm_tag=5, comm_size=64)]))
        assert [told(each) for each in trace.parts] == [
            ("broadcast", (0, 1), 64, 0, ()), ("broadcast", (1, 0), 4, 0, (0,)), ("compute", (0,), 0, 1e-5, (1,)),
        ]  # fmt: skip

    def test_a_receive_waits_for_nothing_but_what_follows_it_does(self, tmp_path: Path) -> None:
        """Both ranks send first and then receive: as parts that wait for each other it would be a circle."""
        ranks = [
            [
                node(1, SEND, comm_dst=1 - rank, comm_size=64),
                node(2, RECV, [1], comm_src=1 - rank, comm_size=64),
                node(3, COMP, [2], 10),
            ]
            for rank in range(2)
        ]
        trace, _ = read(chakra(tmp_path, *ranks))
        by_name = {part.ranks: number for number, part in enumerate(trace.parts) if part.size_bytes == 64}
        for part in (each for each in trace.parts if each.pattern is None):
            rank = part.ranks[0]
            answer = next(n for n, p in enumerate(trace.parts) if p.size_bytes == 4 and p.ranks == (1 - rank, rank))
            assert {*part.after} == {by_name[1 - rank, rank], answer}

    def test_groups_of_torch_and_of_a_file(self, tmp_path: Path) -> None:
        coll: dict[str, Any] = {"comm_type": 0, "comm_size": 4096}
        known = json.dumps([{"pg_name": "7", "ranks": [0, 2]}, {"pg_name": "8", "ranks": [1, 3]}])
        meta = node(0, 1, more=block(8, block(1, f'["{known}"]'.encode())))
        meta = meta.replace(block(2, b"a node"), block(2, b"## process_group:init ##"))
        ranks = [[meta, node(1, COLL, pg_name="78"[rank % 2], **coll)] for rank in range(4)]
        trace, _ = read(chakra(tmp_path, *ranks))
        assert [each.ranks for each in trace.parts] == [(0, 2), (1, 3)]
        (tmp_path / "groups.json").write_text('{"7": [0, 2], "8": [1, 3], "9": [0, 1, 2, 3]}')
        files = chakra(tmp_path, *[nodes[1:] for nodes in ranks])
        trace, notes = read(files, groups=str(tmp_path / "groups.json"))
        assert ([each.ranks for each in trace.parts], notes) == ([(0, 2), (1, 3)], [])
        assert "has no counterpart in group 7 at rank 1" in refused(files)
        (tmp_path / "groups.json").write_text('{"7": [0, 9]}')
        assert "does not map names to lists of ranks" in refused(files, groups=str(tmp_path / "groups.json"))

    def test_the_json_of_the_feeder_and_of_the_jsonizer(self, tmp_path: Path) -> None:
        coll = {"Id": 2, "Name": "c", "NodeType": 7, "data_deps": [1], "comm_type": 0, "comm_size": 4096}
        feeder = {"workload_graph": [{"Id": 1, "NodeType": 4, "data_deps": [], "runtime": 5}, coll], "ngpus": 2}
        jsonizer = [
            {"version": "0.0.4"},
            {"id": "1", "type": "COMP_NODE", "durationMicros": "5"},
            {"id": "2", "type": "COMM_COLL_NODE", "dataDeps": ["1"], "attr": [
                {"name": "comm_type", "int64Val": "0"}, {"name": "comm_size", "uint64Val": "4096"}]},
        ]  # fmt: skip
        texts = (json.dumps(feeder), "".join(json.dumps(each, indent=1) for each in jsonizer))
        found = [read(written(tmp_path, "x.json", text), ranks=2)[0].parts for text in texts]
        assert found[0] == found[1]
        assert [told(each)[0] for each in found[0]] == ["compute", "compute", "all-reduce"]
        assert "is one of PyTorch" in refused(written(tmp_path, "x.json", '{"schema": "1.0.2", "nodes": []}'), ranks=2)
        assert "x.json:2  the trace is not JSON" in refused(written(tmp_path, "x.json", "{\n]"), ranks=2)

    def test_checkpoints_and_kv_transfers_go_to_storage(self, tmp_path: Path) -> None:
        """Node types 8 and 9, and fields 11 and 12, are of Chakra after 1.0.0."""
        write = block(11, number(1, 1) + block(10, number(1, 4) + number(5, 1 << 16)))
        checkpoint = node(1, 9, more=number(12, 2), comm_size=4096)
        kv = node(1, 9, more=number(12, 3), comm_size=8192, comm_dst=0)
        load = node(2, 9, [1], more=number(12, 1), comm_size=2048)
        trace, notes = read(
            chakra(tmp_path, [node(1, 8, more=write + block(99, b"?"))], [checkpoint, load], [kv]), storage=2
        )
        sent = {(each.ranks, each.size_bytes) for each in trace.parts if each.size_bytes > 4}
        assert sent == {((0, 3), 1 << 16), ((1, 4), 4096), ((4, 1), 2048), ((2, 0), 8192)}
        assert (trace.ranks, notes) == (5, ["2 rank behind those of the trace is storage"])

    def test_what_has_no_place_is_counted(self, tmp_path: Path) -> None:
        nodes = [
            node(1, 2), node(2, 3, [1]), node(3, 40, [2]), node(4, COLL, [3]), node(5, COMP, [4], num_ops=9),
            node(6, COLL, [5], comm_type=0, comm_size=0), node(7, COLL, [6], comm_type=7, comm_size=1),
            node(8, COLL, comm_type=77, comm_size=1),
        ]  # fmt: skip
        trace, notes = read(chakra(tmp_path, nodes, nodes))
        assert [told(each) for each in trace.parts] == [("reduce-scatter", (0, 1), 32, 0, ())]
        assert [note.partition(" ")[2] for note in notes] == [
            "memory nodes are left out",
            "nodes of an unknown type are left out",
            "collectives without comm_type are left out",
            "computations have operations but no duration, and take no time",
            "collectives of an unknown comm_type are left out",
            "operations with 0 bytes are left out",
            "sizes are below the least of their collective, and raised to it",
        ]

    def test_dense_dependencies_become_a_chain(self, tmp_path: Path) -> None:
        nodes = [node(key, COMP, range(1, key), 1) for key in range(1, 40)]
        trace, _ = read(chakra(tmp_path, *[[*nodes, node(99, COLL, [39], comm_type=0, comm_size=64)]] * 2))
        assert [told(each)[3] for each in trace.parts] == [39e-6, 39e-6, 0]

    def test_computations_of_idle_ranks_are_left_out_with_them(self, tmp_path: Path) -> None:
        busy = [node(1, COMP, micros=5), node(2, COLL, [1], comm_type=0, comm_size=64, pg_name="0")]
        idle = [node(1, COMP, micros=5), node(2, 0, [1]), node(3, COMP, [2], 5)]
        (tmp_path / "groups.json").write_text('{"0": [0, 2]}')
        files = chakra(tmp_path, busy, idle, busy)
        trace, _ = read(files, groups=str(tmp_path / "groups.json"), skip_idle=True)
        assert trace.ranks == 2
        assert sorted(map(told, trace.parts)) == [
            ("all-reduce", (0, 1), 64, 0, (0, 1)), ("compute", (0,), 0, 5e-6, ()), ("compute", (1,), 0, 5e-6, ()),
        ]  # fmt: skip

    @pytest.mark.parametrize(
        ("ranks", "says"),
        [
            ([[node(7, COMP, [8]), node(8, COMP, [9]), node(9, COMP, [7])], []],
             "x.0.et  node 7 waits for itself: node 7 after node 8 after node 9 after node 7"),
            ([[node(7, COMP, [8])], []], "x.0.et  node 7 waits for 8, which is not in the trace of rank 0"),
            ([[node(7, COMP), node(7, COMP)], []], "x.0.et  node 7 is there twice"),
            ([[node(7, SEND, comm_dst=1, comm_size=4)], []],
             "x.0.et  node 7 has no receive from rank 0 with tag 0 at rank 1"),
            ([[], [node(7, RECV, comm_src=0, comm_size=4)]],
             "x.1.et  node 7 has no send to rank 1 with tag 0 at rank 0"),
            ([[node(7, SEND, comm_dst=0, comm_size=4)], []], "node 7 sends from rank 0 to rank 0, but is of rank 0"),
            ([[node(7, COLL, comm_type=0, comm_size=4)], [node(8, COLL, comm_type=2, comm_size=4)]],
             "x.0.et  node 7 is all-reduce, but node 8 of"),
            ([[node(1, RECV, comm_src=1, comm_size=4), node(2, SEND, [1], comm_dst=1, comm_size=4)],
              [node(3, RECV, comm_src=0, comm_size=4), node(4, SEND, [3], comm_dst=0, comm_size=4)]],
             "waits for itself: node "),
            ([[node(7, COMP, micros=1)], []], "the trace has no operation that sends"),
            ([[node(7, COLL, comm_type=0, comm_size=1 << 50)]] * 2, "node 7 has 1125899906842624 bytes"),
            ([[node(7, COMP, micros=1 << 62)], []], "node 7 takes"),
        ],
    )  # fmt: skip
    def test_errors_name_the_node(self, tmp_path: Path, ranks: list[list[bytes]], says: str) -> None:
        assert says in refused(chakra(tmp_path, *ranks))

    def test_a_barrier_and_names_of_collectives(self, tmp_path: Path) -> None:
        graph = [{"Id": 1, "NodeType": 7, "comm_type": "BARRIER"}, {"Id": 2, "NodeType": 7, "data_deps": [1],
                 "comm_type": "ALL_TO_ALL", "comm_size": 4096}]  # fmt: skip
        trace, _ = read(written(tmp_path, "x.json", json.dumps({"workload_graph": graph})), ranks=4)
        assert [(told(each)[0], each.after) for each in trace.parts] == [("barrier", ()), ("all-to-all", (0,))]

    @pytest.mark.parametrize(
        ("limit", "most", "says"),
        [
            ("chakrafile.MOST_NODES", 9, "has more than 9 nodes"),
            ("chakra._MOST_DEPS", 9, "has more than 9 dependencies"),
            ("graph.MOST_PARTS", 9, "has more than 9 operations that send or compute"),
            ("protobuf.MOST_MESSAGE", 9, "ends or is damaged at byte 8 of 578"),
        ],
    )
    def test_large_files_are_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, most: int, says: str
    ) -> None:
        nodes = [node(key, COLL, range(1, key), comm_type=0, comm_size=4) for key in range(1, 12)]
        files = chakra(tmp_path, nodes, nodes)
        monkeypatch.setattr(f"heddle.traffic.traces.{limit}", most)
        assert says in refused(files)

    def test_a_truncated_file_names_the_byte_and_the_last_node(self, tmp_path: Path) -> None:
        data = et([node(7, COMP, micros=1), node(8, COMP, micros=1)])
        for end in range(len(data) - 1, 30, -5):
            (tmp_path / "x.et").write_bytes(data[:end])
            assert "the trace ends or is damaged at byte" in refused([str(tmp_path / "x.et")], ranks=2)
        (tmp_path / "x.et").write_bytes(data[:-1])
        assert f"of {len(data) - 1}, after node 7" in refused([str(tmp_path / "x.et")], ranks=2)
        for at in range(8, 8 * len(data)):  # one wrong bit
            wrong = bytearray(data)
            wrong[at // 8] ^= 1 << at % 8
            (tmp_path / "x.et").write_bytes(wrong)
            refused([str(tmp_path / "x.et")], ranks=2)  # if it can be read, it sends nothing
        (tmp_path / "x.et").write_bytes(gzip.compress(data)[:-9])
        assert "x.et  the trace is damaged gzip data" in refused([str(tmp_path / "x.et")], ranks=2)
        assert "cannot be read: No such file" in refused([str(tmp_path / "none.et")])


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

    @pytest.mark.parametrize(
        ("old", "new", "says"),
        [
            ("num_ranks 2", "ranks 2", "x.goal:1  ranks 2 is not a number of ranks"),
            ("rank 1 {", "rank 2 {", "x.goal:10  rank 2 { is not one of 2 ranks"),
            ("calc 2000", "calc 2us", "x.goal:4  l1: calc 2us is not an operation"),
            ("tag 7 cpu 1 nic 0", "tag 8", "has no receive from rank 0 with tag 8 at rank 1"),
            ("l2 requires l1  /*", "l2 requires l9  /*", "x.goal:6  l2 requires l9 names l9, which no line before it"),
            ("from 0 tag 7", "from -1 tag 7", "receives from any rank"),
            ("l2 irequires", "l2 requires", ""),
            ("recv 8b from 1", "l1: recv 8b from 1", "has label l1 of another operation"),
            ("l3 irequires l2 }", "l3 requires l2", "x.goal  the trace ends inside of rank 1"),
            ("l2 requires l1  ", "l2 requires l1; l1 requires l2", "waits for itself: l1 of rank 0"),
        ],
    )
    def test_errors_name_the_line(self, tmp_path: Path, old: str, new: str, says: str) -> None:
        text = GOAL.replace(old, new)
        if says:
            assert says in refused(written(tmp_path, "x.goal", text))


MATRIX = """Nodes 4
Connections 4
Triggers 2
0->1 id 1 start 1e6 size 4000 send_done_trigger 1 prio 3
0->2 id 2 trigger 1 size 8000 recv_done_trigger 2 msg
3->1 id 3 start 2000000.0 size 4000
3->0 id 4 trigger 2 size 4000
trigger id 1 oneshot
trigger id 2 barrier count 1
"""


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

    @pytest.mark.parametrize(
        ("old", "new", "says"),
        [
            ("Connections 4", "Connections 5", "x.cm  Connections 5 does not fit the number of lines, which is 4"),
            ("Triggers 2", "Triggers 3", "x.cm  Triggers 3 does not fit"),
            ("3->1 id 3 start", "3->4 id 3 start", "x.cm:6  3->4 is not between two of 4 nodes"),
            ("prio 3", "colour 3", "x.cm:4  0->1 has colour 3, which is not known"),
            (" size 8000", "", "x.cm:5  0->2 has no size"),
            ("start 1e6 ", "", "x.cm:4  0->1 needs either a start or a trigger"),
            ("send_done_trigger 1", "send_done_trigger 2", "waits for oneshot trigger 1, which is fired 0 times"),
            ("trigger id 1 oneshot", "trigger id 9 oneshot", "names trigger 1, which no line declares"),
            ("barrier count 1", "barrier count 2", "waits for barrier trigger 2, which is fired 1 times"),
            ("barrier count 1", "sometimes", "x.cm:9  trigger id 2 sometimes needs an id"),
            ("Nodes 4", "Knots 4", "x.cm:1  Knots is not known"),
        ],
    )
    def test_errors_name_the_line(self, tmp_path: Path, old: str, new: str, says: str) -> None:
        assert says in refused(written(tmp_path, "x.cm", MATRIX.replace(old, new)))


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

    @pytest.mark.parametrize(
        ("old", "new", "says"),
        [
            ("HYBRID_TRANSFORMER_FWD_IN_BCKWD", "MICRO", "x.txt:1  the workload is not one of a transformer"),
            ("all_gpus: 16", "all_gpus: 12", "has 12 ranks in groups of TP 2, EP 2 and PP 2"),
            ("\n2\n", "\n3\n", "x.txt:2  3 is not the number of layers, which is 2"),
            ("mlp\t-1", "mlp", "x.txt:4  mlp has 11 columns, not 12"),
            ("1000 ALLGATHER", "fast ALLGATHER", "x.txt:3  attention has fast ns"),
        ],
    )
    def test_errors_name_the_line(self, tmp_path: Path, old: str, new: str, says: str) -> None:
        assert says in refused(written(tmp_path, "x.txt", f"{HEADER}\n{LAYERS}".replace(old, new)))

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

    @pytest.mark.parametrize(
        ("keys", "says"),
        [
            ("trace: x.cm\nsize: 4M", "w.yml:2  size does not go together with trace, which states it"),
            ("trace: x.cm\ncollective: all-reduce", "w.yml:2  collective does not go together with trace"),
            ("trace: x.cm\nranks: 8", "w.yml:2  ranks has 8 ranks, but its trace has 4"),
            ("trace: x.cm\nranks: 0:3", "w.yml:2  ranks has 3 ranks, but its trace has 4"),
            ("trace: x.cm\nscale: x", "w.yml:2  scale: x is not a factor"),
            ("trace: x.cm\ntime_scale: -1", "w.yml:2  time_scale: -1 is not a factor"),
            ("trace: x.cm\nstorage: 0", "w.yml:2  storage: 0 is outside 1 to 1024"),
            ("trace: x.cm\nskip_idle: maybe", "w.yml:2  skip_idle: maybe is not on or off"),
            ("trace: [x.cm, 5]", "5  the trace does not exist, and 5.0.et does not, either"),
            ("trace: ", "w.yml:1  trace has no value"),
            ('trace: ""', "w.yml:1  trace has an empty name"),
            ("collective: all-reduce\nstorage: 2", "w.yml:2  storage: 2 is for a job with a trace"),
            ("trace: x.cm\nop: max", "w.yml:2  op does not go together with trace"),
            ("trace: gpt", "gpt  the trace does not exist, and gpt.0.et does not, either"),
            ("trace: none.cm", "none.cm  the trace cannot be read: No such file or directory"),
            ("trace: y.cm", "y.cm:1  Knots is not known"),
        ],
    )
    def test_errors_have_the_line(self, tmp_path: Path, keys: str, says: str) -> None:
        written(tmp_path, "x.cm", MATRIX)
        written(tmp_path, "y.cm", "Knots 5")
        (path,) = written(tmp_path, "w.yml", keys)
        with pytest.raises(InputError) as error:
            load_workload(path)
        assert says in str(error.value).replace(f"{tmp_path}/", "")


def test_other_files_are_refused(tmp_path: Path) -> None:
    assert "has a name with an unknown end" in refused(written(tmp_path, "x.trace", ""))
    assert "but only Chakra has one for each rank" in refused([str(tmp_path / "x.cm"), str(tmp_path / "y.cm")])
