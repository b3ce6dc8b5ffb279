"""The groups of figures of `./inv bench`: help lists each."""

from __future__ import annotations

from heddle.cli.bench_verb import bench
from tests.bench import _groups


def test_help_lists_every_group() -> None:
    listed = bench.help["what"].replace(",", " ").split()
    assert [word for word in listed if word not in ("or", "all")] == list(_groups(None))
