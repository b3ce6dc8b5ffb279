"""Plugin testing: assertions and their failures, properties in JUnit XML, the marker `fabric`, claims of labs."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heddle.base.problems import InputError, MachineError
from heddle.base.process import start_of
from heddle.base.state import check_name
from heddle.fabric.fabricfile import load_fabric
from heddle.host.capacity import Cause
from heddle.lab.queues import AgentRow, QueueRow, QueuesResult, Reactions
from heddle.proof.linkuse import LinkUse, Mmr
from heddle.proof.measure import Count, Measured
from heddle.proof.verdict import Arrivals, FlowProof, PathsResult
from heddle.runs.parts.machine import MachineUse
from heddle.runs.parts.queues import QueueUse
from heddle.runs.runrecord import ProofSummary, RunRecord, UnfitKind
from heddle.spec.load import value_text
from heddle_plugins.testing import (
    assert_busbw_above,
    assert_depth_below,
    assert_lossless,
    assert_marked_below,
    assert_mmr_below,
    assert_no_pauses,
    assert_no_wrong,
    assert_paths_agree,
    assert_reliable,
    assertions,
)
from heddle_plugins.testing import pool as claims
from heddle_plugins.testing.calls import RunCall
from heddle_plugins.testing.plugin import fabric_properties, paths_properties, run_properties
from heddle_plugins.testing.pool import FabricRequest, request_of
from tests.unit.run_samples import having, result, sent

PREDICTED = ("rtsw1:eth3", "ctsw1:eth2", "rtsw2:eth1")
OTHER = ("rtsw1:eth4", "ctsw2:eth2", "rtsw2:eth1")


def proof(qpn: int, measured: tuple[str, ...] = PREDICTED, why: str = "", *, trusted: bool = True) -> FlowProof:
    steps = tuple((Count(port, 7, 900),) for port in measured)
    return FlowProof(sent(qpn), PREDICTED if trusted else None, PREDICTED, Measured(steps, (), 7), why)


def uplinks(loads: Mapping[str, tuple[int, int]]) -> tuple[LinkUse, ...]:
    """Port -> flows and bytes."""
    return tuple(LinkUse(port, True, size // 100, size, flows) for port, (flows, size) in loads.items())


EVEN = uplinks({f"rtsw{n}:eth{p}": (8, 1000) for n in (1, 2) for p in (3, 4)})
SKEWED = uplinks({"rtsw1:eth3": (14, 3500), "rtsw1:eth4": (2, 500), "rtsw2:eth3": (8, 2000), "rtsw2:eth4": (8, 2000)})


def paths(*proofs: FlowProof, links: tuple[LinkUse, ...] = EVEN, lost: Mapping[str, int] | None = None) -> PathsResult:
    agree = all(not each.why for each in proofs)
    return PathsResult(agree, proofs, links, Mmr.of(links), {}, "rtsw", lost or {}, (), delivery=Arrivals.of(proofs))


def queue(port: str, drops: Mapping[str, int]) -> QueueRow:
    return QueueRow(
        port, 3, "lossless", 0, 90_000, 10_000, 40_000_000, 0, 0, drops, 0, 0, 0, 0, 0, 0, 0, 0, False, 0.0, "ok", 0,
        quiet=False,
    )  # fmt: skip


def queues(*rows: QueueRow) -> QueuesResult:
    return QueuesResult("t1", 4000, rows, (), (), Reactions(0, 0, 0), AgentRow(1, 2), {})


def calm() -> RunRecord:
    """A run without marks, drops and pauses."""
    found = result()
    use = replace(found[QueueUse], marks=0, drops={}, pauses=0, paused_ports=0, paused_hosts=0, paused_ms=0.0)
    return having(replace(found, id="0002"), queues=use)


def busy() -> RunRecord:
    """The run of the samples on a machine that was too slow, with marked packets and a wrong element."""
    found = result()
    causes = (Cause("processor", 1 << 16, 1, sure=True, text="CPU 1 was busy 99% of the time"),)
    flows = tuple(replace(flow, ce=at) for at, flow in enumerate(found.flows))
    rows = (*found.rows[:1], replace(found.rows[1], wrong=12))
    machine = replace(found[MachineUse], unreliable=causes, socket_drops=3)
    return having(replace(found, flows=flows, rows=rows, id="0003"), machine=machine)


def limited() -> RunRecord:
    """A run with right results on a machine that was too slow."""
    return having(calm(), machine=replace(busy()[MachineUse], socket_drops=0))


def unproven() -> RunRecord:
    return replace(calm(), proof=ProofSummary(False, 16, 3, ("oracle", "counters"), 1.0, 1.0))


@pytest.mark.parametrize(
    "passes",
    [
        assert_lossless,
        lambda run: assert_busbw_above(run, 0.01),
        lambda run: assert_marked_below(run, 1),
        lambda run: assert_depth_below(run, "1MB"),
        assert_no_pauses,
    ],
)
def test_no_figure_of_a_run_that_is_not_fit_passes(
    passes: Callable[[RunRecord], None], request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(assertions.ACCEPTED.clear)
    wrong = replace(calm(), rows=busy().rows)
    passes(calm())
    accepted: tuple[UnfitKind, ...]
    for accepted in ((), ("unreliable",)):
        assertions.ACCEPTED.update(accepted)
        for run, why in ((wrong, "12 wrong elements"), (unproven(), "3 of 16 paths not proven")):
            with pytest.raises(AssertionError, match=f"no verdict rests on this run\n.*\nobserved  {why}"):
                passes(run)
        if accepted:
            passes(limited())
            assert dict(run_properties("r", limited()))["r.unfit"].endswith("(accepted)")
            continue
        with pytest.raises(AssertionError, match="--heddle-accept-unreliable accepts such runs"):
            passes(limited())


def test_a_good_result_passes() -> None:
    good = paths(proof(1), proof(2))
    assert_paths_agree(good)
    assert_mmr_below(good, 1.0)
    assert_mmr_below(good, 1.0, by="flows")
    run = calm()
    for subject in (good, queues(queue("rtsw1:eth3", {})), run):
        assert_lossless(subject)
    assert_no_wrong(run)
    assert_busbw_above(run, 0.0225)  # the mean of 0.015 and 0.03: limits are inclusive
    assert_busbw_above(run, 0.03, size=1 << 22)
    assert_marked_below(run, 0)
    assert_depth_below(run, 60_000)
    assert_no_pauses(run)
    assert_reliable(run)


NOT_COUNTED: Mapping[str, Callable[[RunRecord], None]] = {
    "lost packets": assert_lossless,
    "depths of queues": lambda run: assert_depth_below(run, "1MB"),
    "pause frames": assert_no_pauses,
    "processor times": assert_reliable,
    "wrong elements": lambda run: assert_no_wrong(replace(run, rows=())),
    "packets": lambda run: assert_marked_below(replace(run, flows=()), 1),
}


@pytest.mark.parametrize("what", NOT_COUNTED)
def test_what_was_not_counted_does_not_pass(what: str) -> None:
    with pytest.raises(AssertionError, match=f"^{what} were not counted\nexpected  a run that counts them\n"):
        NOT_COUNTED[what](having(calm(), queues=None, machine=None))


def test_a_run_without_sizes_or_with_a_bandwidth_that_is_no_number_has_no_bandwidth() -> None:
    with pytest.raises(AssertionError, match="expected  a row for a size\nobserved  rows for no size"):
        assert_busbw_above(replace(calm(), rows=()), 0.01)
    nan = tuple(replace(row, busbw=float("nan")) for row in calm().rows)
    with pytest.raises(AssertionError, match="observed  nan GB/s"):
        assert_busbw_above(replace(calm(), rows=nan), 0.01)


def test_wrong_elements_in_place_count_too() -> None:
    first, *others = calm().rows
    run = replace(calm(), rows=(replace(first, in_place=replace(first.first, wrong=7)), *others))
    with pytest.raises(AssertionError, match=r"7 wrong elements at 1 of 2 sizes(.|\n)*65,536 +7\n"):
        assert_no_wrong(run)


def test_no_figure_of_paths_passes_where_their_run_has_wrong_data() -> None:
    wrong = replace(paths(proof(1), proof(2)), wrong=7)
    assert_paths_agree(wrong)
    for passes in (assert_lossless, lambda found: assert_mmr_below(found, 9)):
        with pytest.raises(AssertionError, match=r"no verdict rests on this run\n.*\nobserved  7 wrong elements"):
            passes(wrong)


CASES: Mapping[str, Callable[[], None]] = {
    "paths that differ": lambda: assert_paths_agree(
        paths(proof(1), proof(2, OTHER, "the counters name other ports"), proof(3, trusted=False))
    ),
    "paths without a prediction": lambda: assert_paths_agree(
        replace(paths(proof(3, OTHER, "the counters name other ports", trusted=False)), sources=("oracle", "counters"))
    ),
    "many paths that differ": lambda: assert_paths_agree(paths(*(proof(n, (), "was not counted") for n in range(9)))),
    "a verdict that the notes explain": lambda: assert_paths_agree(
        replace(paths(proof(1)), agree=False, notes=("hashing was switched during the run on rtsw1",))
    ),
    "MMR of bytes": lambda: assert_mmr_below(paths(proof(1), links=SKEWED), 1.4),
    "MMR of flows": lambda: assert_mmr_below(paths(proof(1), links=SKEWED), 1.4, by="flows"),
    "MMR where nothing was sent": lambda: assert_mmr_below(paths(links=uplinks({"rtsw1:eth3": (0, 0)})), 1.4),
    "drops of a run": lambda: assert_lossless(replace(result(), id="0001")),
    "drops of queues": lambda: assert_lossless(
        queues(queue("rtsw1:eth3", {"headroom": 12, "threshold": 5}), queue("ctsw1:eth1", {"lost": 40}))
    ),
    "losses on paths": lambda: assert_lossless(paths(proof(1), lost={"ctsw1:eth2": 3})),
    "losses at NICs": lambda: assert_lossless(
        replace(paths(proof(1)), delivery=Arrivals(qps=1, counted=7, received=5))
    ),
    "wrong elements": lambda: assert_no_wrong(busy()),
    "bandwidth": lambda: assert_busbw_above(calm(), 0.05),
    "bandwidth of one size": lambda: assert_busbw_above(calm(), 0.05, size=1 << 22),
    "a size that was not run": lambda: assert_busbw_above(calm(), 0.05, size=12),
    "marks": lambda: assert_marked_below(replace(calm(), flows=busy().flows), 0.01),
    "depth": lambda: assert_depth_below(calm(), "50KB"),
    "pauses": lambda: assert_no_pauses(result()),
    "a busy machine": lambda: assert_reliable(busy()),
    "a figure of wrong data": lambda: assert_busbw_above(busy(), 0.01),
    "a figure of a busy machine": lambda: assert_no_pauses(limited()),
    "a figure of unproven paths": lambda: assert_mmr_below(paths(proof(1), proof(2, OTHER, "was not counted")), 9),
}


def test_each_failure_says_what_was_expected_and_observed_and_where(golden: Callable[[str, str], None]) -> None:
    texts = []
    for name, case in CASES.items():
        with pytest.raises(AssertionError) as caught:
            case()
        texts.append(f"--- {name}\n{caught.value}\n")
        assert max(map(len, str(caught.value).splitlines())) <= 100
    golden("testing/failures.txt", "\n".join(texts))


DOC = Path(__file__).resolve().parents[3] / "docs" / "pytest-api.md"
RUN = {
    "r.id": "0003", "r.collective": "all-reduce", "r.ecmp": "e-ecmp", "r.ranks": "4", "r.qps": "16",
    "r.sizes": "65536,4194304", "r.busbw": "0.0225", "r.busbw.65536": "0.015", "r.busbw.4194304": "0.03",
    "r.wrong": "0", "r.reliable": "true", "r.packets": "16", "r.marked": "0", "r.dropped": "2", "r.pauses": "5",
    "r.paused_ms": "12.5", "r.deepest": "60000", "r.deepest_at": "rtsw1:eth3 class 3",
}  # fmt: skip


def test_a_run_has_its_options_and_what_came_of_it() -> None:
    run = replace(result(), id="0003")
    assert dict(run_properties("r", run)) == RUN
    # One size has one bandwidth; a marked packet and one that the host's sockets lost count; so does a busy host.
    flow = replace(run.flows[0], ce=4)
    busy = replace(run[MachineUse], socket_drops=3, unreliable=(Cause("processor", None, 0, sure=True, text="busy"),))
    found = dict(run_properties("r", having(replace(run, rows=run.rows[:1], flows=(flow,)), machine=busy)))
    assert (found["r.busbw"], found["r.marked"], found["r.packets"]) == ("0.015", "4", "7")
    assert (found["r.dropped"], found["r.reliable"]) == ("5", "false")
    assert found["r.unfit"] == "unreliable: UNRELIABLE: busy"
    assert "r.busbw.65536" not in found
    assert "r.dropped" not in dict(run_properties("r", having(run, queues=None)))


def test_paths_and_the_fabric_have_their_properties_all_in_the_manual() -> None:
    found = dict(paths_properties("r", paths(proof(1), links=SKEWED)))
    assert (found["r.paths_agree"], found["r.mmr"], found["r.mmr_flows"]) == ("true", "1.75", "1.75")
    assert (found["r.uplink.rtsw1:eth3.bytes"], found["r.uplink.rtsw1:eth3.flows"]) == ("3500", "14")
    assert len([name for name in found if name.startswith("r.uplink.")]) == 8, "two of each: no rate is known"
    timed = LinkUse("rtsw1:eth3", True, 10, 1_000_000, 4, rate_bps=20_000_000, run_s=0.8)
    assert dict(paths_properties("r", paths(links=(timed,))))["r.uplink.rtsw1:eth3.utilisation"] == "0.5000"
    idle = dict(paths_properties("r", paths(proof(1, (), "lost"), links=(LinkUse("rtsw1:eth3", True, 0, 0, 0),))))
    assert idle["r.paths_agree"] == "false"
    assert "r.mmr" not in idle
    # The fabric is named where it is known.
    assert list(fabric_properties("netns", 4000)) == [("heddle.runtime", "netns"), ("heddle.k", "4000")]
    assert dict(fabric_properties("netns", 4000, "tiny, racks=3"))["heddle.fabric"] == "tiny, racks=3"
    # Every property is in the manual.
    text = DOC.read_text(encoding="utf-8")
    named = [*dict(fabric_properties("netns", 1, "tiny")), *(name.replace("r.", "heddle.runN.", 1) for name in RUN)]
    named = [name.replace("busbw.65536", "busbw.SIZE") for name in named if not name.endswith("busbw.4194304")]
    named += [f"heddle.runN.{name}" for name in ("paths_agree", "mmr", "mmr_flows", "no_paths", "unfit")]
    named += [f"heddle.runN.uplink.PORT.{name}" for name in ("bytes", "flows", "utilisation")]
    assert [name for name in named if f"`{name}`" not in text] == []


WHERE = "test_mine.py:7"


def wrong(*args: object, **keys: object) -> list[str]:
    with pytest.raises(InputError) as caught:
        request_of(args, keys, where=WHERE)
    return [str(each) for each in caught.value.problems]


def test_nested_keys_are_those_of_set() -> None:
    request = request_of(("zone",), {"routing": {"ecmp": "e-ecmp", "resilient": False}, "racks": 3})
    assert request == FabricRequest("zone", ("routing.ecmp=e-ecmp", "routing.resilient=false", "racks=3"))
    assert request.title == "zone, routing.ecmp=e-ecmp, routing.resilient=false, racks=3"
    assert request.load().spec == load_fabric("zone", overrides=request.overrides).spec


@pytest.mark.parametrize(
    ("keys", "path", "value"),
    [
        ({"queues": {"dscp": {26: 0}}}, "queues.dscp", {"26": 0}),
        ({"queues": {"lossless": [3, 4]}}, "queues.lossless", [3, 4]),
        ({"queues": {"lossless": (3,)}}, "queues.lossless", [3]),
        ({"link": {"host": "50mbit"}}, "link.host", 50_000_000),
        ({"routing": {"hash": {"fields": ["src", "sport"]}}}, "routing.hash.fields", ["src", "sport"]),
    ],
)
def test_python_values_reach_the_fabric_as_they_are(keys: dict[str, Any], path: str, value: object) -> None:
    spec: Any = request_of(("tiny",), keys).load().spec
    found = spec.model_dump()
    for step in path.split("."):
        found = found[step]
    assert (list(found) if isinstance(found, tuple) else found) == value


@pytest.mark.parametrize("text", ["no", "1e3", "true", "null", " x", "a: b", "#", "", "[", "0x10", "~"])
def test_a_text_that_yaml_would_read_as_something_else_gets_quotes(text: str) -> None:
    from heddle.spec.yamlfile import parse_value

    written = value_text("key", text)
    assert written is not None
    assert parse_value(written, "", ("key",))[0] == text


def test_a_path_is_relative_to_the_test_file_and_a_word_is_a_preset(tmp_path: Path) -> None:
    (tmp_path / "a place").mkdir()
    (tmp_path / "a place" / "mine.yml").write_text("name: mine\nracks: 2\nctsw: 3\n")
    request = request_of(("a place/mine.yml",), {}, directory=tmp_path)
    assert request.fabric == str(tmp_path / "a place" / "mine.yml")
    assert len(request.load().fabric.switches) == 5
    assert request_of((tmp_path / "a place" / "mine.yml",), {}, directory=Path("/")).fabric == request.fabric
    assert request_of(("tiny",), {}, directory=tmp_path).fabric == "tiny"


def test_mistakes_have_the_place_of_the_test_or_the_line_of_the_file(tmp_path: Path) -> None:
    (said,) = wrong("tiny", routing={"ecmp": "eecmp"})
    assert said.startswith("test_mine.py:7  routing.ecmp: eecmp is not one of flow, e-ecmp")
    assert "did you mean e-ecmp?" in said
    assert [each.splitlines()[0] for each in wrong("tiny", rack=2, link={"mtu": 9})] == [
        "test_mine.py:7  link.mtu: 9 is below 1280", "test_mine.py:7  rack is not a key",
    ]  # fmt: skip
    (said,) = wrong("tinny")
    assert said.startswith("test_mine.py:7  tinny is neither a preset nor a file") and "did you mean tiny?" in said
    # A mistake in a file has the line of the file.
    (tmp_path / "mine.yml").write_text("name: mine\nracks: two\nctsw: 3\n")
    with pytest.raises(InputError) as caught:
        request_of(("mine.yml",), {"queues": {"bufer": 1}}, where=WHERE, directory=tmp_path)
    assert [each.where for each in caught.value.problems] == [f"{tmp_path / 'mine.yml'}:2", WHERE]


def test_arguments_that_are_no_fabric_are_all_named() -> None:
    assert wrong() == wrong_of("fabric()")
    assert wrong("tiny", "zone") == wrong_of("fabric('tiny', 'zone')")
    assert wrong(7) == wrong_of("fabric(7)")
    said = wrong("tiny", name="mine", racks=wrong, **{"a=b": 1})
    assert [each.splitlines()[0][:60] for each in said] == [
        "test_mine.py:7  name: mine cannot be set: the plugin chooses",
        f"test_mine.py:7  racks: {wrong!r} is a Python function"[:60],
        "test_mine.py:7  'a=b' is not a key of a fabric file"[:60],
    ]
    assert "is a Python function, which no fabric file can contain" in said[1]


def wrong_of(call: str) -> list[str]:
    why = "needs one argument: a preset's name or the path of a fabric file"
    return [f'{WHERE}  {call} {why}\n{" " * (len(WHERE) + 2)}hint: write @pytest.mark.fabric("tiny")']


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(claims, "CLAIMS_DIR", tmp_path / "claims")
    return tmp_path / "claims"


def test_names_can_be_those_of_labs_and_differ() -> None:
    names = [claims.new_name() for _ in range(40)]
    assert len(set(names)) == len(names)
    for name in names:
        assert check_name(name) == name
        assert name.startswith(names[0][:10])


def test_a_process_is_known_by_its_start_and_one_that_ended_by_none() -> None:
    assert start_of(os.getpid()) == start_of(os.getpid()) is not None
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = start_of(child.pid)
    assert started is not None and claims.LabClaim("a", child.pid, started, "").alive
    assert not claims.LabClaim("a", child.pid, started + 1, "").alive, "another process has the number by now"
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert start_of(child.pid) is None, "it has ended, though its parent has not looked"
    child.communicate()
    assert start_of(child.pid) is None


@pytest.mark.root
def test_only_claims_of_processes_that_ended_are_orphans(directory: Path) -> None:
    with claims.orphans() as found:
        assert found == []
    claims.claim("mine", Path("/var/tmp/state"))
    child = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    row = {"lab": "lost", "pid": int(child.stdout), "started": 1, "state_dir": "/var/tmp/other"}
    (directory / "lost").write_text(json.dumps(row))
    (directory / "broken").write_text("{")
    (directory / ".half").write_text("")
    assert [each.lab for each in claims.claims()] == ["lost", "mine"]
    with claims.orphans() as found:
        assert [(each.lab, each.state_dir) for each in found] == [("lost", "/var/tmp/other")]
    claims.unclaim("lost")
    claims.unclaim("lost")
    assert [each.lab for each in claims.claims()] == ["mine"]
    for name in (".half", "broken"):
        (directory / name).unlink()
    claims.unclaim("mine")
    assert not directory.exists()


@pytest.mark.root
def test_a_sweep_waits_for_another_one_in_bounded_time_and_for_no_other_user(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "_SWEEP_S", 0.1)
    claims.claim("mine", Path("/var/tmp/state"))
    fd = os.open(directory, os.O_RDONLY)  # as every user can open it
    fcntl.flock(fd, fcntl.LOCK_EX)
    with claims.orphans():
        assert (directory / ".lock").stat().st_mode & 0o077 == 0
        with pytest.raises(MachineError, match=f"has been locked for 0.1 s by process {os.getpid()}"), claims.orphans():
            pass
    os.close(fd)
    claims.unclaim("mine")
    assert not directory.exists()


@pytest.mark.root
@pytest.mark.parametrize("kind", ["writable", "link", "owner"])
def test_claims_that_others_could_write_are_refused(directory: Path, tmp_path: Path, kind: str) -> None:
    if kind == "link":
        (tmp_path / "elsewhere").mkdir()
        directory.symlink_to(tmp_path / "elsewhere")
    else:
        directory.mkdir(mode=0o755)
        directory.chmod(0o777 if kind == "writable" else 0o755)
        if kind == "owner":
            os.chown(directory, 65534, 65534)
    with pytest.raises(MachineError, match="is not a directory that only root can write"):
        claims.claim("mine", Path("/var/tmp/state"))
    with pytest.raises(MachineError, match="only root can write"), claims.orphans():
        pass


def test_an_argument_that_no_run_has_is_named_with_the_nearest_one() -> None:
    with pytest.raises(InputError) as caught:
        RunCall(None)(qpss=4, colective="incast")  # type: ignore[arg-type]
    first, second = caught.value.problems
    assert str(first) == "heddle_run(qpss=...) is not an argument of a run\n  hint: did you mean qps?"
    assert second.hint == "did you mean collective?"
