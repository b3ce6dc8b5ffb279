"""Bytes or shares for each pair of ranks: a matrix, and an uneven all-to-all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from heddle.base.problems import InputError
from heddle.endpoints.runoptions import run_options
from heddle.fabric.fabricfile import load_fabric
from heddle.traffic.collectives import Pattern, find_pattern
from heddle.traffic.collectives.pattern import (
    SendStep,
)
from heddle.traffic.plan import Plan, build_plan


def test_an_uneven_all_to_all_sends_its_shares_of_a_chunk(tmp_path: Path) -> None:
    equal, skewed = find_pattern("all-to-all-v", counts="skew:0:1"), find_pattern("all-to-all-v", counts="skew:3:5")
    assert equal.volume(8, 8000) == find_pattern("all-to-all").volume(8, 8000)
    for ranks in (2, 5, 16):
        count = skewed.whole(ranks, 100_000)
        came = np.bincount(
            np.concatenate(
                [[*range(ranks)], *([to for to, _ in skewed.sent_by(ranks, r, count)] for r in range(ranks))]
            )
        )
        assert (came == ranks).all()
        got = sorted(max(piece.hi for piece in skewed.result(ranks, rank, count)) for rank in range(ranks))
        assert got[-1] == count and got[-1] / got[0] == pytest.approx(5, rel=0.01)
    rows = find_pattern("all-to-all-v", counts="0,1,3;1,2,1;2,0,3")
    assert [list(rows.sent_by(3, rank, 36)) for rank in range(3)] == [
        [(1, 12), (2, 1)],
        [(2, 4), (0, 1)],
        [(0, 12), (1, 1)],
    ]
    assert list(find_pattern("all-to-all-v", counts="0,1,999;1,0,1").sent_by(2, 1, 16)) == [(0, 1)], "pairs stay"
    large = find_pattern("all-to-all-v", counts=f"0,1,{1 << 40};1,0,{1 << 39}")
    assert [list(large.sent_by(2, rank, 1 << 30)) for rank in range(2)] == [[(1, 1 << 29)], [(0, 1 << 28)]]
    file = tmp_path / "c.csv"
    file.write_text("src,dst,bytes\nhost1,1:4,2\n1:4,host1,1\n")
    plan = build_plan(
        load_fabric("tiny").fabric, run_options(collective="all-to-all-v", counts=str(file), size="64K:128K:x2")
    )
    assert dict(plan.options.parameters) == {"counts": "0,1,2;0,2,2;0,3,2;1,0,1;2,0,1;3,0,1"}


def test_a_matrix_comes_from_a_file_as_that_of_predict(tmp_path: Path) -> None:
    file = tmp_path / "m.csv"
    file.write_text("# a comment\nsrc,dst,bytes\n0,1,64K\n1,0,4\n0,1,1K\n")

    def planned(typed: str, size: str = "1M") -> Plan:
        """Its ranks: those of a fabric of four hosts."""
        return build_plan(load_fabric("tiny").fabric, run_options(collective="matrix", matrix=typed, size=size))

    assert planned(str(file)).options.parameters == (("matrix", "0,1,66560;1,0,4"),)
    with pytest.raises(InputError, match=r"^--matrix .*none\.csv does not exist"):
        planned(str(tmp_path / "none.csv"))
    with pytest.raises(InputError, match=r"^--matrix row 2: dst: 9 is not a rank of this job"):
        planned("0,1,64;1,9,4")
    file.write_text("bytes,dst,src\n4K,host2,0:1\n8,2:4,host1:eth1\n")
    assert planned(str(file)).options.parameters == (("matrix", "0,1,4096;0,2,8;0,3,8"),)


def test_a_named_matrix_is_among_all_ranks_with_the_size_of_each_pair() -> None:
    def planned(typed: str, size: str) -> Plan:
        return build_plan(load_fabric("tiny").fabric, run_options(collective="matrix", matrix=typed, size=size))

    plan = planned("all-to-all", "64K")
    assert (plan.options.parameters, plan.options.sizes) == ((("matrix", "all-to-all:0,65536"),), (3 << 16,))
    again = planned("all-to-all:0,65536", "1M")
    assert again == plan, "its bytes are part of it, so that a plan's options give the same plan"
    both = planned("shift:1,4K;0,1,8;incast:2,1K", "1M").options
    assert dict(both.parameters)["matrix"] == "0,1,8;shift:1,4096;incast:2,1024"
    cells = {(src, dst): span for src in range(4) for src, dst, span in sent(both.pattern, 4, src)}
    assert cells == {(0, 1): 4104, (1, 2): 4096, (2, 3): 4096, (3, 0): 4096, (1, 0): 1024, (2, 0): 1024}
    with pytest.raises(InputError, match="several sizes are not possible"):
        planned("shift:1", "64K:1M:x2")


def sent(pattern: Pattern, ranks: int, rank: int) -> list[tuple[int, int, int]]:
    """Sender, receiver and bytes of what a rank sends."""
    steps = pattern.program(ranks, rank, 0)
    size = pattern.element_bytes
    return [(rank, s.to, (s.span[1] - s.span[0]) * size) for s in steps if isinstance(s, SendStep)]
