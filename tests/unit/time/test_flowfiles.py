"""Flows and their completion times as HPCC's and htsim's files: exact columns, and what their readers make of them."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from heddle.base.problems import InputError
from heddle_plugins.time.flowfiles import FlowColumns, fct_text, flow_text, htsim_text
from tests.machine import patience
from tests.traces import read, told, written

FLOWS = FlowColumns(
    src=np.array([0, 300, 5]),
    dst=np.array([13, 1, 0], dtype=np.int32),
    sport=np.array([10_000, 10_001, 49_152]),
    dport=np.array([100, 100, 4791]),
    size=np.array([2_002_140, 8, 4096]),
    start_s=np.array([0.0, 2e-6, 1e-6]),
    fct_s=np.array([176.2e-6, 1.5e-9, 3.0]),
    standalone_s=np.array([160.1711e-6, 0.0, 2.5]),
)


def test_fct_txt_has_hexadecimal_addresses_and_nanoseconds_in_the_order_of_ends() -> None:
    assert fct_text(FLOWS).splitlines() == [
        "0b012c01 0b000101 10001 100 8 2000 2 1",
        "0b000001 0b000d01 10000 100 2002140 0 176200 160171",
        "0b000501 0b000001 49152 4791 4096 1000 3000000000 2500000000",
    ]


def test_htsim_lines_have_microseconds_and_packets() -> None:
    assert htsim_text(FLOWS, 4086).splitlines()[1] == (
        "Flow Uec_0_13 flowId 1000000001 uecSrc 0 finished at 176.2000 total messages 1 total packets 490 RTS 0 "
        "total bytes 2002140"
    )
    ends = [float(found) for found in re.findall(r"finished at ([\d.]+) ", htsim_text(FLOWS, 4096))]
    assert ends == [2.0015, 176.2, 3_000_001.0]


def test_flow_txt_is_read_as_the_same_flows(tmp_path: Path) -> None:
    text = flow_text(FLOWS)
    assert text.splitlines()[:2] == ["3", "0 13 3 100 2002140 0.000000000"]
    parts = {(each[1], each[2]) for each in map(told, read(written(tmp_path, "flow.txt", text))[0].parts) if each[2]}
    assert parts == {((0, 13), 2_002_140), ((300, 1), 8), ((5, 0), 4096)}


def test_half_a_million_flows_are_written_in_seconds() -> None:
    many = FlowColumns(*(np.tile(getattr(FLOWS, name), 170_000) for name in FlowColumns.__slots__))
    before = time.process_time()
    assert fct_text(many).count("\n") == htsim_text(many, 4096).count("\n") == 510_000
    assert time.process_time() - before < patience(15)


@pytest.mark.parametrize(
    ("column", "values", "why"),
    [
        ("dst", np.array([1, 2]), "have several lengths: src 3, dst 2"),
        ("fct_s", np.array([0, np.nan, 1]), "flow 1 has fct_s nan, which is no time"),
        ("start_s", np.array([0, 1, -1.0]), "flow 2 has start_s -1, which is no time"),
        ("src", np.array([0, 65_536, 1]), "node 65536 of fct.txt is beyond HPCC's addresses"),
    ],
)
def test_columns_that_are_no_flows_are_refused(column: str, values: np.ndarray, why: str) -> None:
    with pytest.raises(InputError, match=re.escape(why)):
        fct_text(replace(FLOWS, **{column: values}))
