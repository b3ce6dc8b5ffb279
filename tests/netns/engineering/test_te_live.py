"""Entries of traffic engineering in a running lab: installed and removed under load, without a loss, proven."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from heddle.base import owners, state
from heddle.base.problems import InputError, MachineError
from heddle.cli.console import Console
from heddle.lab import rehash
from heddle.lab.lab import Lab
from heddle.lab.rehash import changes_of_run, engineered, put_in_force, take_out
from heddle.lab.snapshot import LabPart
from heddle.runs.store import load, paths_of
from heddle.switch.hashing import hashing
from heddle.switch.hashing.maps import Exact
from heddle.traffic.flow import Flow
from heddle.traffic.options import RunOptions
from heddle_plugins.engineering import te_live
from heddle_plugins.engineering.te_live import TeWords
from tests.conftest import FabricLab
from tests.machine import until
from tests.netns.collectives import proven, ran, run_and
from tests.readings import read_hashing

OPTIONS: dict[str, Any] = {"qps": 8, "placement": "cyclic"}
ROOT: Final = Path(__file__).resolve().parents[3]
DATA: Final = 3  # the class of data packets
UPLINKS = ("eth1", "eth2", "eth3", "eth4")


@pytest.fixture(scope="module")
def lab(fabric_lab: FabricLab) -> Lab:
    """2 RTSW, 4 CTSW, 4 hosts."""
    return fabric_lab(racks=2, ctsw=4)


@pytest.fixture(autouse=True)
def back_to_the_file(lab: Lab) -> Iterator[None]:
    """Every story begins with what the file says."""
    yield
    rehash.restore_hashing(lab)


@pytest.fixture(scope="module")
def flows(lab: Lab) -> list[Flow]:
    """The flows of every run with OPTIONS."""
    ran(lab, **OPTIONS)
    return [sent.flow for sent in load(lab, None).evidence.sent]


def tables_for(lab: Lab, flows: list[Flow], turn: int = 0) -> dict[str, Exact]:
    """Entries that send all flows of a switch over its uplinks in turn, from number `turn` on."""
    tables: dict[str, dict[Any, tuple[str, ...]]] = {}
    prefixes = {owner: prefix for prefix, owner in lab.fabric.edge_prefixes.items()}
    for flow in flows:
        switch, home = flow.first_hop.partition(":")[0], lab.fabric.nic_at[flow.dst_ip].peer_node
        if switch != home:
            table = tables.setdefault(switch, {})
            at = len(table) + turn
            table.setdefault((flow.sport, prefixes[home]), (UPLINKS[at % 4], UPLINKS[(at + 1) % 4]))
    return dict(tables)


def test_entries_are_put_in_force_counted_and_taken_out_again(lab: Lab, flows: list[Flow]) -> None:
    rehash.set_hashing(lab, "e-ecmp", switches=["rtsw1"])
    before = {name: read_hashing(lab.name, lab.handle(name)) for name in rehash.wanted(lab)}
    tables = tables_for(lab, flows)
    assert put_in_force(lab, tables, "te apply") == ("rtsw1", "rtsw2")
    assert put_in_force(lab, tables, "te apply") == (), "nothing differs"
    assert read_hashing(lab.name, lab.handle("rtsw2")).steering.exact == tables["rtsw2"]
    ran(lab, **OPTIONS)
    taken = {(each.flow.first_hop.partition(":")[0], each.flow.sport): each.measured[0] for each in proven(lab).flows}
    for switch, table in tables.items():
        for (sport, _), ports in table.items():
            assert taken[switch, sport] == f"{switch}:{ports[0]}"
    found = engineered(lab.name)
    assert found is not None and (found.by, found.switches) == ("te apply", ("rtsw1", "rtsw2"))
    now = lab.snapshot(LabPart.HASHING).statistics
    counts = found.since("rtsw1", now["rtsw1"])
    assert counts["steered"] > 100 and counts["backups"] == 0
    take_out(lab, "te off")
    assert {name: read_hashing(lab.name, lab.handle(name)) for name in before} == before
    assert engineered(lab.name) is None
    with pytest.raises(InputError, match="has no installed entries of traffic engineering"):
        take_out(lab, "te off")
    put_in_force(lab, tables, "te apply")
    rehash.set_hashing(lab, "spray", switches=["rtsw2"])
    take_out(lab, "te off")
    left = read_hashing(lab.name, lab.handle("rtsw2"))
    assert (left.mode, left.steering.exact) == ("spray", {}), "what the user has chosen since then stays"


def test_paths_stay_proven_while_entries_change_and_off_loses_no_packet(lab: Lab, flows: list[Flow]) -> None:
    def change() -> None:
        for turn in range(3):
            put_in_force(lab, tables_for(lab, flows, turn), "te watch")
        take_out(lab, "te off")

    result = run_and(lab, RunOptions(**OPTIONS, sizes=(1 << 20,), iters=2, warmup=0), change)
    paths = proven(lab)
    assert result.wrong == 0 and not paths.lost and not any(load(lab, None).evidence.drops.values())
    moved = [proof for proof in paths.flows if proof.spread]
    assert moved and all(len({*proof.expected}) == len(proof.expected) for proof in moved)
    (note,) = [note for note in paths.notes if "entries were changed" in note]
    assert note.startswith("entries were changed 4 times during the run (te watch at ") and "te off at " in note
    ran(lab, **OPTIONS)
    assert changes_of_run(lab.name) == () and not any(proof.spread for proof in proven(lab).flows)


@pytest.mark.deep
def test_a_change_that_is_not_recorded_is_never_a_proof(lab: Lab, flows: list[Flow]) -> None:
    rehash.set_hashing(lab, "e-ecmp")
    tables = tables_for(lab, flows)

    def change() -> None:
        put_in_force(lab, tables, "te apply")
        rehash.set_hashing(lab, "e-ecmp", switches=["rtsw2"])

    run_and(lab, RunOptions(**OPTIONS, sizes=(1 << 20,), iters=2, warmup=0), change)
    paths = paths_of(lab)
    assert not paths.agree
    assert any(
        note.startswith("hashing was changed during the run, so no path follows one rule") for note in paths.notes
    )


def test_a_switch_that_dies_during_a_swap_gives_the_others_their_old_rule(
    lab: Lab, flows: list[Flow], monkeypatch: pytest.MonkeyPatch
) -> None:
    rehash.set_hashing(lab, "e-ecmp")
    before = {name: read_hashing(lab.name, lab.handle(name)) for name in rehash.wanted(lab)}
    record = state.read_record(lab.name)
    real = hashing._Job.flip

    def flip(self: hashing._Job) -> None:
        real(self)
        if self.handle.name == "rtsw2":
            self.handle = replace(self.handle, netns=self.handle.netns.with_name("gone"))
            real(self)

    monkeypatch.setattr(hashing._Job, "flip", flip)
    with pytest.raises(MachineError, match="gone is not a namespace here"):
        put_in_force(lab, tables_for(lab, flows), "te apply")
    monkeypatch.undo()
    now = {name: read_hashing(lab.name, lab.handle(name)) for name in before}
    assert now["rtsw1"] == before["rtsw1"] and state.read_record(lab.name) == record


def test_show_names_switches_that_a_killed_change_did_not_reach(
    lab: Lab, flows: list[Flow], capsys: pytest.CaptureFixture[str]
) -> None:
    rehash.set_hashing(lab, "e-ecmp")
    before = {name: read_hashing(lab.name, lab.handle(name)) for name in rehash.wanted(lab)}
    put_in_force(lab, tables_for(lab, flows), "te apply")
    te_live.show(Console(), TeWords(lab.name))
    assert "not as recorded" not in capsys.readouterr().out
    hashing.change(lab.name, [(lab.handle("rtsw2"), before["rtsw2"])])  # the record is written first: as after a kill
    te_live.show(Console(), TeWords(lab.name))
    assert "not as recorded on rtsw2: that change did not complete" in capsys.readouterr().out
    for _ in range(2):  # also where nothing is left to remove
        te_live.off(Console(), TeWords(lab.name))
        assert f"{lab.name}: no entries of te are installed" in capsys.readouterr().out


@pytest.mark.deep
def test_a_port_that_dies_loses_what_waited_there_and_its_flows_go_to_their_backups(lab: Lab) -> None:
    options: dict[str, Any] = {"collective": "broadcast", "placement": "host1,host3", "ranks": 2, "qps": 8}
    ran(lab, **options)
    put_in_force(lab, tables_for(lab, [sent.flow for sent in load(lab, None).evidence.sent]), "te apply")
    result = ran(lab, **options, sizes=(4 << 20,), iters=1, warmup=0, faults=("rtsw1:eth2,down,from=200ms",))
    evidence = load(lab, None).evidence
    then, now = (state.statistics["rtsw1"] for state in (evidence.before, evidence.after))
    assert result.wrong == 0 and now["backups"] > then["backups"] and now["fell_back"] == then["fell_back"]
    lost = {port: evidence.class_drops(port, DATA) or 0 for port, drops in evidence.drops.items() if drops}
    assert {port for port, count in lost.items() if count} <= {"rtsw1:eth2"}
    assert lost.get("rtsw1:eth2", 0) <= 64, "the connection's window: what can have waited at the port"


@pytest.mark.deep
def test_a_controller_is_one_per_lab_and_its_death_changes_no_packet(lab: Lab, flows: list[Flow]) -> None:
    command = [sys.executable, "-m", "heddle.cli", "te", "watch", "--interval", "300ms", "--lab", lab.name]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as controller:
        until(lambda: owners.working_on(lab.name, "te") is not None)
        with pytest.raises(InputError, match=rf"process {controller.pid}.*its te watch goes on"):
            te_live.apply(Console(), TeWords(lab.name))

        def kill() -> None:
            until(lambda: engineered(lab.name) is not None)
            controller.kill()
            controller.wait()

        result = run_and(lab, RunOptions(**OPTIONS, sizes=(4 << 20,), iters=1, warmup=0), kill)
    assert result.wrong == 0 and not any(load(lab, None).evidence.drops.values())
    assert owners.working_on(lab.name, "te") is None and engineered(lab.name) is not None
    te_live.off(Console(), TeWords(lab.name))
    assert not rehash.live_hashing(lab)
