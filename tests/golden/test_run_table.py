"""The table of a run, word for word, and the same table printed part by part while the run goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from heddle.base.problems import MachineError, Problem
from heddle.cli.console import Console
from heddle.cli.run_verb import LiveTable
from heddle.lab.fabricstate import FabricReading, FabricState
from heddle.runs.runrecord import RunRecord
from heddle.runs.runtable import Figures, SizeRow, TableLook, figures
from heddle.traffic.options import RunOptions
from tests.unit import run_samples as samples

# The widest and the narrowest figures that a column can have.
ROWS = (
    SizeRow(8, 564.0, 1.418e-5, 2.1e-5, 0),
    SizeRow(65536, 31234.5, 0.0021, 0.0039, 0),
    SizeRow(4194304, 1.5e8, 12.345, 23.1, 7),
    SizeRow(1 << 28, 999999.4, 0.27, 1234567.0, 1_234_567),
)
DOWN = FabricReading(("rtsw1:eth1  the link is down",))


def finished() -> RunRecord:
    options = RunOptions(sizes=tuple(row.size for row in ROWS), qps=16)
    state = FabricState(DOWN, DOWN)
    return replace(samples.result(options), rows=ROWS, before=state.before, fabric_state=state, id="0007")


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


def test_a_finished_table(golden: Callable[[str, str], None]) -> None:
    text = finished().table()
    golden("runs/finished.log", text)
    rows = [line for line in text.splitlines() if not line.startswith("#")]
    names = next(line for line in text.splitlines() if "#wrong" in line)
    assert {len(line) for line in rows} == {len(names)}, "every row ends where the names of the columns end"


def test_a_table_with_figures_of_iterations(golden: Callable[[str, str], None]) -> None:
    look = TableLook(per_iter=True, skip=1, plain=True)
    times = [[(20.0 + rank + 10 * each) / 1e3 for each in range(4)] for rank in range(4)]
    rows = (SizeRow.of(65536, figures(65536, 4, 1.5, [sum(each) for each in times], 0, times)), ROWS[1])
    both = replace(rows[0], size=1 << 20, in_place=rows[0].first)
    head = finished()
    text = "\n".join([*head.lines(look=look), *(head.row(row, look=look) for row in (*rows, both))])
    golden("runs/iterations.log", text + "\n")
    assert len({len(line) for line in text.splitlines()[-5:]}) == 1, "names, units and rows end together"
    assert head.foot(plain=True) == [line for line in head.foot() if line.startswith(("# ", "#UNRELIABLE", "#emul"))]


def test_rows_fit_a_terminal_of_80_columns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    live = LiveTable(Console())
    live.head(finished())
    for row in ROWS:
        live.row(row)
    *_, names, units, first, second, third, fourth = printed(capsys).splitlines()
    assert (names[:10], names[-6:], units[:10]) == ("#     size", "#wrong", "#      (B)")
    rows = (first, second, third, fourth)
    assert {len(line) for line in rows} == {len(names)} == {80}
    wide = [finished().row(row).split() for row in ROWS]
    assert [line.split() for line in rows] == [line[:5] + line[9:] for line in wide], "all-reduce works in place"


def test_both_measurements_of_a_size_are_in_the_row_and_in_the_average() -> None:
    run = finished()
    row = SizeRow.of(64, Figures(10.0, 6.4, 12.8, 1, (10.0,)), Figures(20.0, 3.2, 6.4, 2, (20.0,)))
    both = replace(run, options=replace(run.options, in_place="both"), rows=(row.again(row),))
    assert both.row(both.rows[0]).split()[5:] == ["10.00", "6.40", "12.80", "2", "20.00", "3.20", "6.40", "4"]
    assert both.busbw == pytest.approx(9.6) and both.wrong == 6
    assert "in-place" in both.table(short=True) and both.lines(narrow=True) == both.lines()
    assert both.to_json()["results"][0]["in_place"]["time_us"] == 20.0
    gathered = replace(run, options=replace(run.options, collective="all-gather", algorithm="ring"))
    assert gathered.sides(ROWS[0]) == (ROWS[0].first, None)
    assert run.sides(ROWS[0]) == (None, ROWS[0].first)


def test_parts_that_are_printed_one_by_one_are_the_finished_table(capsys: pytest.CaptureFixture[str]) -> None:
    result = finished()
    live, seen = LiveTable(Console()), ""
    live.head(result)
    for row in ROWS:
        live.row(row)
        new = printed(capsys)
        assert new.splitlines()[-1] == result.row(row), "a row is on the screen before the next one is measured"
        seen += new
    live.end(result)
    assert seen + printed(capsys) == result.table()


def test_an_interrupted_table(golden: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for lasting in (True, False):
        live = LiveTable(Console())
        live.head(samples.result())
        live.row(samples.result().rows[0])
        live.interrupted([replace(samples.interrupted(), id="0008")], lasting=lasting)
        texts.append(printed(capsys))
    golden("runs/interrupted.log", "\n\n".join(texts))


def test_with_json_there_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    live = LiveTable(Console("json"))
    live.head(finished())
    live.row(ROWS[0])
    assert printed(capsys) == ""
    live.end(finished())
    assert printed(capsys).startswith("{")


@pytest.mark.parametrize("error", [BrokenPipeError(), MachineError(Problem("", "stdout", "cannot be written"))])
def test_a_reader_that_leaves_does_not_end_the_run(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Console, text: str) -> None:
        raise error

    monkeypatch.setattr(Console, "part", refuse)
    live = LiveTable(Console())
    live.head(finished())
    live.row(ROWS[0])
    with pytest.raises(type(error)):
        live.end(finished())
