"""The report as text: sections, what a run does not carry, escaping, nothing from a network, one write."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from heddle.base.problems import InputError
from heddle.cli.argv import parse
from heddle.cli.run_verb import run as run_task
from heddle.endpoints.runoptions import run_options
from heddle.fabric.fabricfile import load_fabric
from heddle.lab.opening import Rendered
from heddle.runs.compare import compare
from heddle.runs.parts.machine import MachineUse
from heddle.runs.runrecord import RunRecord
from heddle.runs.store import open_runs
from heddle.traffic.collectives.pattern import InPlace
from heddle.traffic.options import RunOptions
from heddle.traffic.readers import parse_source_ports
from heddle.views.graph import write_file
from heddle.views.report.page import report_html, sections
from heddle.views.report.runparts import results, run_commands
from heddle.views.style import ON_DARK
from tests.unit import run_samples as samples
from tests.unit.kept_runs import AROUND, LABELS, keep, refused, row, with_rows

HOSTILE = "</script><img src=x onerror=alert(1)>&\"'"


def test_every_section_stands_in_the_page_in_its_order(tmp_path: Path) -> None:
    run = keep(tmp_path)
    html = report_html([run])
    places = [html.index(f'id="{run.name}-{section.key}"') for section in sections()]
    assert places == sorted(places)
    named = [section.key for section in sections()]
    assert named[named.index("paths") + 1] == "diagnosis", "of a plugin, which names the section before it"
    assert named[-1] == "reproduce"
    text = html
    assert len(text) < 700_000
    for said in ("k = 4000", "emulated", "8.4.4", "A Processor", "queues.ecn.kmin", "./inv run --lab zone"):
        assert said in text, said
    assert all(f">{label.port}</th>" in text for label in LABELS)


def test_the_diagnosis_is_of_the_files_of_the_run(tmp_path: Path) -> None:
    text = report_html([keep(tmp_path)])
    section = text.rpartition('-diagnosis"')[2].partition("</section>")[0]
    assert "No cause is established: no fault was found." in section
    assert "the lab is not running" in section


def test_nothing_is_loaded_from_anywhere(tmp_path: Path) -> None:
    html = report_html([keep(tmp_path)])
    text = html
    assert "default-src 'none'" in text
    assert html.count("<script>") == 1
    found = re.findall(r"(?:src|href|url\()=?[\"']?([^\"' )>]+)", text)
    assert found
    assert [each for each in found if not each.startswith(("#", "data:"))] == []


def test_hostile_texts_are_text(tmp_path: Path) -> None:
    record = samples.record()
    record = replace(record, fabric=HOSTILE, warnings=(HOSTILE,))
    fabric = samples.FABRIC
    nodes = tuple(replace(node, name=HOSTILE) if node.name == "host4" else node for node in fabric.nodes)
    links = tuple(replace(link, a=(HOSTILE, link.a[1])) if link.a[0] == "host4" else link for link in fabric.links)
    around = replace(AROUND, fabric=replace(fabric, nodes=nodes, links=links), versions={HOSTILE: HOSTILE})
    text = report_html([keep(tmp_path, record=record, around=around)])
    assert "onerror" in text
    assert "<img" not in text
    assert text.count("</script>") == text.count("<script")


def test_a_run_with_missing_or_damaged_files_says_what_it_does_not_carry(tmp_path: Path) -> None:
    run = keep(tmp_path, around=None)
    (run.path / "series.npz").unlink()
    text = report_html(open_runs([str(run.path)]))
    assert text.count("Not shown: fabric.json is missing.") == 3  # the fabric, the paths and the diagnosis
    assert "Not shown: series.npz is missing, so its queues were not recorded." in text
    assert "The fabric file is not here: fabric.json is missing" in text
    # Damaged surroundings are named.
    run = keep(tmp_path / "1")
    (run.path / "fabric.json").write_text('{"format": 1, "fabric": {}}')
    assert open_runs([str(run.path)])[0].fabric.why.startswith("fabric.json is damaged")
    (run.path / "fabric.json").write_text('{"format": 2}')
    again = open_runs([str(run.path)])[0]
    assert again.surroundings.why == "fabric.json has format 2, and this Heddle reads format 1"


@pytest.mark.parametrize(("record", "said"), [(samples.failed(), "(failed)"), (samples.interrupted(), "(interrupted)")])
def test_a_run_that_did_not_end_well_has_what_it_has(tmp_path: Path, record: RunRecord, said: str) -> None:
    text = report_html([keep(tmp_path, record=record)])
    assert said in text
    assert "so it has no paths" in text
    assert "This run did not finish" in text


@pytest.mark.parametrize(
    ("in_place", "said"), [("auto", ["in place"]), ("off", ["out of place"]), ("both", ["out of place", "in place"])]
)
def test_results_are_in_place_where_an_export_has_them_in_place(
    tmp_path: Path, in_place: InPlace, said: list[str]
) -> None:
    options = RunOptions(sizes=(1 << 16, 1 << 22), in_place=in_place)
    rows = samples.record(options).rows
    if in_place == "both":
        rows = tuple(replace(row, in_place=replace(row.first, busbw=0.25)) for row in rows)
    run = keep(tmp_path, record=replace(samples.record(options), rows=rows))
    assert [*dict.fromkeys(re.findall(r"Results, ([a-z ]+)\.", report_html([run])))] == said
    tables: Any = results(run)["tables"]
    columns = [[line[7] for line in table.rows] for table in tables if table.caption.startswith("Results")]
    assert columns[-1] == (["0.25"] * 2 if in_place == "both" else ["0.015", "0.03"])
    by_chunk = RunOptions(collective="all-gather", sizes=(1 << 16,))
    tables = results(keep(tmp_path, 2, samples.record(by_chunk)))["tables"]
    assert tables[0].rows[0][1] == "4,096", "elements of a chunk, as the table of the run counts them"


def test_a_run_with_wrong_elements_says_that_no_verdict_rests_on_it(tmp_path: Path) -> None:
    right = samples.result()
    for number, (wrong, said) in enumerate(((0, False), (12, True)), 1):
        found = replace(right, rows=(replace(right.rows[0], wrong=wrong), *right.rows[1:]))
        run = keep(tmp_path, number, replace(samples.record(), rows=found.rows))
        assert ("no verdict rests on this run: 12 wrong elements" in report_html([run], None)) == said


def test_what_nobody_counted_is_a_dash_and_no_zero(tmp_path: Path) -> None:
    """With --transport rxe the kernel reports neither wrong ICRCs nor stray packets, nor losses at its sockets."""
    use = replace(samples.result()[MachineUse], socket_drops=None)
    flow = replace(samples.flow_row(), counters=dict.fromkeys(samples.flow_row().counters, 7))
    counted = replace(samples.having(samples.result(), machine=use), flows=(flow,), icrc_errors=None, stray=None)
    assert "- with a wrong ICRC, - stray" in counted.table()
    assert (counted.to_json()["icrc_errors"], counted.to_json()["machine"]["socket_drops"]) == (None, None)
    text = report_html([keep(tmp_path, record=counted)])
    assert re.search(r"stray</th>\s*<td>packets</td>\s*<td[^>]*>-</td>", text)


def test_two_runs_are_named_with_their_lab_above_their_comparison(tmp_path: Path) -> None:
    pair = [keep(tmp_path, number, samples.record(ecmp=ecmp)) for number, ecmp in ((1, "flow"), (2, "e-ecmp"))]
    text = report_html(pair, compare(*pair))
    assert "A is run 0001 of lab zone, B is run 0002 of lab zone." in text
    assert re.search(r"hashing</[a-z]+>\s*<td[^>]*>flow</td>\s*<td[^>]*>e-ecmp</td>", text)


def test_the_range_of_iterations_is_in_the_table_where_it_is_known(tmp_path: Path) -> None:
    record = with_rows(samples.record(), row(1 << 16, 1000, 1500, 1250), row(1 << 22, 9000, 9500, 9250))
    text = report_html([keep(tmp_path, record=record)])
    assert "1000 to 1500 (3)" in text
    old = report_html([keep(tmp_path, 2)])
    assert "iterations (us)" not in old


@pytest.mark.parametrize(
    "options",
    [
        RunOptions(),
        RunOptions(collective="incast", sizes=(1 << 16, 1 << 18, 1 << 20), qps=16, iters=3, bucket_ns=10**6),
        RunOptions(sizes=(64, 128, 192, 256), window=8, source_ports=parse_source_ports("list:50000,50001")),
        RunOptions(congestion="dcqcn", own={"congestion_set": (("rpg_ai_rate", 10.0), ("rpg_gd", 10.0))}),
        RunOptions(congestion="swift", own={"congestion_set": (("beta", 0.55),)}),
        RunOptions(admission=True, cts_class="data", admission_set=(("steps", 4.0),), slow=(("host3", 0.25),)),
        RunOptions("reduce", parameters=(("dtype", "bfloat16"), ("operation", "max"), ("root", 3))),
        RunOptions("matrix", parameters=(("matrix", "0,1,65536;1,0,4096"),)),
        RunOptions(qp_mode="round-robin", placement="host1,host3", timeout=20, split="MOD 2", ranks=4),
    ],
)
def test_the_commands_of_a_run_mean_the_same_options(options: RunOptions) -> None:
    (line,) = run_commands(options, "zone")
    import shlex

    words = shlex.split(line)
    assert words[:4] == ["./inv", "run", "--lab", "zone"]
    typed = parse(run_task.verb, words[2:])
    typed.pop("lab")
    assert run_options(**typed) == options


def test_sizes_that_no_range_has_are_a_command_each() -> None:
    lines = run_commands(RunOptions(sizes=(8, 64, 100)), "zone")
    assert [re.search(r"--size (\d+)$", line + "").group(1) for line in lines] == ["8", "64", "100"]  # type: ignore[union-attr]


@pytest.mark.parametrize("overrides", [(), ("routing.ecmp=e-ecmp", "queues.ecn.kmax=200KB", "link.fabric=50mbit")])
def test_the_fabric_file_in_the_report_makes_the_same_fabric(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    loaded = load_fabric("zone", overrides=overrides)
    spec = Rendered(loaded.fabric, loaded.spec).spec_data()
    path = tmp_path / "zone.yml"
    path.write_text(yaml.safe_dump(dict(spec), sort_keys=False, default_flow_style=None, width=100))
    assert load_fabric(str(path)).fabric == loaded.fabric


def test_words_that_mean_no_run(tmp_path: Path) -> None:
    assert "is not the directory of a run: it has no run.json" in refused(f"{tmp_path}/nothing")
    run = keep(tmp_path)
    assert len(open_runs([str(run.path), f"{run.path}/."])) == 1, "a run that is named twice is one"
    (run.path / "run.json").write_text("{")
    assert "run.json is damaged" in refused(str(run.path))


def test_a_file_is_written_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("before")
    path.chmod(0o640)
    with pytest.raises(TypeError):
        write_file(path, "text, no bytes", "report.html")  # type: ignore[arg-type]
    assert path.read_text() == "before"
    write_file(path, b"after", "report.html")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("after", 0o640)
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]
    link = tmp_path / "link.html"
    link.symlink_to(path)
    write_file(link, b"through", "link.html")
    assert link.is_symlink()
    assert path.read_text() == "through"


def test_what_was_set_while_the_lab_ran_is_a_command(tmp_path: Path) -> None:
    every = {node.name: {"pfc.xoff": 90_000} for node in samples.FABRIC.nodes}
    rule = {"mode": "e-ecmp", "seed": 7, "options": {"resilient": True}, "exact": []}
    some = {**every, "rtsw1": {"pfc.xoff": 90_000, "ecn.kmax": 800_000}}
    one = report_html([keep(tmp_path, 1, around=replace(AROUND, queues=every))])
    assert "./inv queues set pfc.xoff=90000\n" in one
    text = report_html([keep(tmp_path, 2, around=replace(AROUND, queues=some, hashing={"rtsw1": rule, "rtsw2": rule}))])
    assert "./inv queues set pfc.xoff=90000 ecn.kmax=800000 --switch rtsw1\n" in text
    assert "./inv hashing e-ecmp --switch rtsw1,rtsw2\n# with options (--set): resilient: yes\n" in text


def test_the_file_has_a_short_flag_too() -> None:
    from heddle.cli.argv import Verb
    from heddle.cli.runs_verb import compare, report, runs

    verbs: list[Verb] = [report.verb, compare.verb]
    for verb in verbs:
        assert parse(verb, ["1", "2", "-o", "x.html"])["out_"] == "x.html"
        assert parse(verb, ["1", "2", "-o=x.html"])["out_"] == "x.html"
    with pytest.raises(InputError, match="-o is not a flag of runs"):
        parse(runs.verb, ["-o", "x"])


def test_runs_are_offered_where_they_are_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from heddle.base import state
    from heddle.cli.argv import Typed
    from heddle.cli.runs_verb import compare, report

    monkeypatch.setenv("HEDDLE_STATE_DIR", str(tmp_path))
    state.lab_dir("zone").mkdir(parents=True)
    state.write_record(state.Record("zone", "netns", "running", {"name": "zone"}))
    keep(state.lab_dir("zone") / "runs", 1)
    for verb in (report.verb, compare.verb):
        for parameter in verb.positionals:
            assert parameter.option.offered(Typed(verb, parameter)) == ["0001", "last"]


def test_charts_follow_the_colours_of_the_page(tmp_path: Path) -> None:
    text = report_html([keep(tmp_path)])
    style, _, body = text.partition("</style>")
    plots = "".join(re.findall(r'<div class="plot".*?</svg>', body, re.DOTALL))
    used = set(re.findall(r"var\((--c[0-9a-f]{6})\)", plots))
    assert used and "var(--page)" in plots
    assert not [colour for colour in ON_DARK if colour in plots.lower()]
    paper, _, dark = style.partition(":root { --c")[2].partition(":root { --c")
    assert all(f"{name.removeprefix('--c')}:#" in paper and f"{name.removeprefix('--c')}:#" in dark for name in used)
