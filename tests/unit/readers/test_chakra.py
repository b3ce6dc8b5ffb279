"""Traces of Chakra: what is read, what is left out, and every error names its place."""

from __future__ import annotations

import gzip
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from tests.traces import (
    COLL,
    COMP,
    INTEGERS,
    RECV,
    SEND,
    attribute,
    block,
    chakra,
    et,
    node,
    number,
    read,
    refused,
    told,
    written,
)


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
            ("chakra.MOST_NODES", 9, "has more than 9 nodes"),
            ("chakra._MOST_DEPS", 9, "has more than 9 dependencies"),
            ("graph.MOST_PARTS", 9, "has more than 9 operations that send or compute"),
            ("chakra.MOST_MESSAGE", 9, "ends or is damaged at byte 8 of 578"),
        ],
    )
    def test_large_files_are_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, most: int, says: str
    ) -> None:
        nodes = [node(key, COLL, range(1, key), comm_type=0, comm_size=4) for key in range(1, 12)]
        files = chakra(tmp_path, nodes, nodes)
        monkeypatch.setattr(f"heddle_plugins.readers.traces.{limit}", most)
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
