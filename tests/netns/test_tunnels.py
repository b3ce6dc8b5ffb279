"""Tunnels of cut links that the network does not carry: named at once, with both shards and the port; and over IPv6."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from heddle.base.events import Silent
from heddle.base.problems import HeddleError, MachineError
from heddle.fabric.fabricfile import load_fabric
from heddle.lab import lifecycle
from heddle.lab.cutlinks import lost_carriers, tunnels, wait_for_carriers
from heddle.lab.lab import Lab
from heddle.render.dialects import RenderOptions
from heddle.switch.links.cuts import TUNNEL_PORT
from tests import localshards
from tests.machine import patience, until
from tests.netns.test_shards import ran, round_trips

NAMED_S = 5.0
OTHER = 24789


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[localshards.LocalCluster]:
    """The runtime of shards on this machine, registered for a test."""
    yield from localshards.registered(tmp_path_factory.mktemp("shards"))


class Blocking(localshards.LocalCluster):
    """Its shards cannot send to one UDP port."""

    blocked = TUNNEL_PORT

    def create(self, lab: str, *words: object) -> None:
        super().create(lab, *words)  # type: ignore[arg-type]
        for shard in ("s1", "s2"):
            self.drop_udp(lab, shard, self.blocked)


def up(name: str, *overrides: str, port: int | None = None) -> Lab:
    options = RenderOptions(target={} if port is None else {"tunnel_port": str(port)})
    fabric = load_fabric("tiny", name=name, overrides=overrides)
    return lifecycle.up(fabric, runtime=localshards.NAME, options=options).lab


@pytest.mark.long("10 seconds and more")
def test_up_names_a_tunnel_whose_port_is_dropped_and_another_port_works(
    cluster: localshards.LocalCluster, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    blocking = Blocking(cluster._directory)
    monkeypatch.setattr(localshards.LocalShards, "on", blocking)
    took = list[float]()

    def timed(lab: Lab) -> None:
        began = time.monotonic()
        try:
            wait_for_carriers(lab)
        finally:
            took.append(time.monotonic() - began)

    monkeypatch.setattr("heddle.lab.cutlinks.wait_for_carriers", timed)
    try:
        with pytest.raises(MachineError) as caught:
            up(name)
        assert [(each.where, each.what, each.why) for each in caught.value.problems] == [
            (f"shard {one}", f"the tunnel from shard {two} (10.88.0.{two[1]}, UDP port {TUNNEL_PORT})",
             "is dead: nothing comes through it")
            for one, two in (("s1", "s2"), ("s2", "s1"))
        ]  # fmt: skip
        assert "--tunnel-port" in caught.value.problems[0].hint
        assert took[0] < patience(NAMED_S), took
        lab = up(name, port=OTHER)
        assert [each for each in round_trips(lab) if not (each.alive and each.whole)] == []
        _, paths = ran(lab)
        assert paths.agree and not paths.lost
    finally:
        blocking.close()


class Heard(Silent):
    """Keeps warnings, with their times."""

    def __init__(self) -> None:
        self.warned = list[tuple[float, str]]()

    def warn(self, text: str) -> None:
        self.warned.append((time.monotonic(), text))


@pytest.mark.long
def test_a_tunnel_that_dies_in_a_run_is_named_at_once_and_by_its_error(
    cluster: localshards.LocalCluster, name: str
) -> None:
    lab = up(name, "link.host=20mbit", "link.fabric=40mbit")
    heard, ended = Heard(), list[HeddleError]()

    def work() -> None:
        try:
            ran_with(lab, heard)
        except HeddleError as error:
            ended.append(error)

    before = sum(each.sent for each in tunnels(lab))
    worker = threading.Thread(target=work)
    worker.start()
    until(lambda: sum(each.sent for each in tunnels(lab)) > before + 500)
    died = time.monotonic()
    for shard in ("s1", "s2"):
        cluster.drop_udp(name, shard, TUNNEL_PORT)
    until(lambda: any("the tunnel from shard" in text for _, text in heard.warned))
    at = next(at for at, text in heard.warned if "the tunnel from shard" in text)
    assert at - died < patience(NAMED_S), at - died
    worker.join(patience(120))
    assert ended and {each.where for each in ended[0].problems[:2]} == {"shard s1", "shard s2"}, ended
    assert {each.why for each in ended[0].problems[:2]} == {"is dead: nothing comes through it"}
    assert {each.where for each in lost_carriers(lab)} == {"shard s1", "shard s2"}
    for shard in ("s1", "s2"):
        cluster.drop_udp(name, shard, TUNNEL_PORT, end=True)
    until(lambda: not lost_carriers(lab))


def ran_with(lab: Lab, heard: Heard) -> None:
    from heddle.runs.run import run
    from heddle.traffic.options import RunOptions

    run(lab, RunOptions(sizes=(1 << 22,), iters=50, warmup=0, qps=4), heard)


@pytest.mark.long
def test_shards_reach_each_other_over_ipv6_and_frames_that_it_does_not_fragment_are_named(
    cluster: localshards.LocalCluster, name: str
) -> None:
    cluster.prefix, cluster.mtu = "fd00:88::", 9000
    lab = up(name)
    assert all(each.address.startswith("fd00:88::") and each.whole for each in round_trips(lab))
    before = {each.port: each for each in tunnels(lab)}
    _, paths = ran(lab)
    assert paths.agree and not paths.lost
    assert all(each.lost == before[each.port].lost for each in tunnels(lab))
    assert sum(each.sent - before[each.port].sent for each in tunnels(lab)) > 100
    cluster.kill(name, "s2")
    lifecycle.repair_lab(name)
    _, paths = ran(lab)
    assert paths.agree
    lifecycle.down(name)
    cluster.mtu = localshards.MTU
    with pytest.raises(MachineError, match="loses frames of the links' MTU, and passes small ones") as caught:
        up(name)
    assert "link.mtu" in caught.value.problems[0].hint
    lab = up(name, "link.mtu=1300", "roce.ib_mtu=1024")
    _, paths = ran(lab)
    assert paths.agree and not paths.lost


@pytest.mark.deep
def test_a_run_beside_its_own_down_says_that_the_lab_was_removed(cluster: localshards.LocalCluster, name: str) -> None:
    lab = up(name)
    lifecycle._record_ending(name)  # as `down` does, before its first pod ends
    cluster.kill(name, "s2")
    for call in (lambda: ran(lab), lambda: tunnels(lab)):
        with pytest.raises(HeddleError) as caught:
            call()
        assert "was removed by ./inv down" in str(caught.value) and "--repair" not in str(caught.value)
    lifecycle.down(name)
