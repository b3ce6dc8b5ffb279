"""Checkpoints and training data: shards, pace, places in both networks, and the published figures in the forecast."""

from __future__ import annotations

from math import prod

import pytest

from heddle.base.events import Silent
from heddle.base.problems import InputError
from heddle.endpoints.workloadfile import load_workload, read_workload
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.model import Fabric
from heddle.offline.forecast import Ask
from heddle.runs.run import plan_workload
from heddle.spec.yamlfile import parse
from heddle.traffic.collectives import find_pattern
from heddle.traffic.collectives.pattern import SendStep
from heddle.traffic.workload import Workload
from heddle_plugins.storage.patterns import read_rate
from heddle_plugins.time import tasks
from heddle_plugins.time.forecast import TimeForecast, time_forecast

FRONT = ("frontend.storage=4", "frontend.preprocess=2", "frontend.link.host=50mbit", "frontend.link.fabric=50mbit")
SHARED = (*FRONT, "frontend.share_nics=true")


def zone(*changes: str) -> Fabric:
    """16 hosts, with a front-end."""
    return load_fabric("zone", overrides=changes or FRONT).fabric


def jobs(text: str) -> Workload:
    return read_workload(parse(f"jobs: {text}", "a.yml"), "a.yml", "a")


def forecast(fabric: Fabric, workload: Workload) -> TimeForecast:
    return time_forecast(fabric, workload, Ask(), Silent(), gains=False)


def iteration(fabric: Fabric, text: str, job: int = 0) -> float:
    """Seconds of an iteration of one of the jobs."""
    return forecast(fabric, jobs(text)).jobs[job].sizes[0].seconds


@pytest.mark.parametrize(("trainers", "servers"), [(16, 4), (16, 1), (4, 16), (7, 3), (9, 6), (2048, 280)])
def test_every_server_has_an_equal_part_and_every_byte_once(trainers: int, servers: int) -> None:
    ranks = trainers + servers
    pattern = find_pattern("checkpoint", storage_hosts=servers)
    count = pattern.whole(ranks, 40_000)
    got: dict[int, list[tuple[int, int]]] = {}
    for rank in range(trainers):
        sends = [each for each in pattern.program(ranks, rank, count) if isinstance(each, SendStep)]
        assert [each.span[0] for each in sends] == [0, *(each.span[1] for each in sends)][:-1], "in order, without gaps"
        assert sends[-1].span[1] == count
        assert len(sends) <= -(-servers // trainers) + 1
        for each in sends:
            got.setdefault(each.to, []).append((each.put, each.put + each.span[1] - each.span[0]))
    assert sorted(got) == [*range(trainers, ranks)]
    for parts in got.values():
        assert [lo for lo, _ in parts] == [0, *(hi for _, hi in parts)][:-1]
        assert parts[-1][1] * servers == trainers * count


def test_times_and_rates_are_those_of_hardware_and_a_table_has_both(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "{t: {collective: all-reduce}, a: {collective: ingest, size: 64K, rate: sustained, every: 1us}}"
    plan = plan_workload(zone(), jobs(text))[0][1].plan
    assert plan.k == 8000
    assert plan.pattern.pace(0, 16384) == pytest.approx(65536 / (122e6 / 8000))
    assert [*plan.pattern.lines()] == [
        "every 1us on hardware, times 8000 here: 0.008 s",
        "at most sustained, 122 MB/s a trainer on hardware, divided by 8000 here: 15.2 KB/s",
    ]
    assert forecast(zone(), jobs(text)).jobs[1].sizes[0].seconds == pytest.approx(65536 / 15250, rel=1e-3)
    assert iteration(zone(), "{a: {collective: checkpoint, size: 4K, every: 100us}}") == pytest.approx(0.8, rel=1e-3)
    monkeypatch.setattr(tasks, "MOST_MESSAGES", 0)
    assert iteration(zone(), "{a: {collective: checkpoint, size: 4K, every: 100us}}") == pytest.approx(0.8, rel=1e-3)


@pytest.mark.parametrize("slow", ["every: 3600s", "rate: 1"])
def test_an_iteration_of_hours_is_refused_where_it_would_run(slow: str) -> None:
    text = f"{{a: {{collective: ingest, size: 64K, {slow}}}}}"
    with pytest.raises(InputError, match=r"an iteration of ingest.*takes at least [\d,]+ s here \(k = 8000\)"):
        plan_workload(zone(), jobs(text))
    assert forecast(zone(), jobs(text)).jobs[0].sizes[0].seconds > 600


@pytest.mark.parametrize("typed", ["122MB/", "122MB/x", "0", "-1"])
def test_a_rate_that_is_none_is_refused(typed: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_rate(typed)


def test_trainers_use_their_front_end_ports_and_servers_follow_them() -> None:
    text = "{a: {collective: ingest, ranks: [3, 5]}, b: {collective: checkpoint, storage_hosts: 1}, c: {size: 1M}}"
    text = text.replace("{size", "{collective: all-reduce, size")
    a, b, c = ([end.nic for end in ends] for ends in jobs(text).endpoints(zone()))
    servers = [f"storage{n}:eth1" for n in (1, 2, 3, 4)]
    assert a == ["host4:eth2", "host6:eth2", *servers, "preprocess1:eth1", "preprocess2:eth1"]
    assert b == [*(f"host{n}:eth2" for n in range(1, 17)), "storage1:eth1"], "jobs of the front-end share its ports"
    assert c == [f"host{n}:eth1" for n in range(1, 17)]
    a, b, c = ([end.nic for end in ends] for ends in jobs(text).endpoints(zone(*SHARED)))
    assert a[:3] == ["host4:eth1", "host6:eth1", "storage1:eth1"] and b[:16] == c, "one network"
    whole = jobs("{a: {collective: checkpoint, network: backend, storage_hosts: 4}}")
    assert len(whole.endpoints(zone())[0]) == 16, "the last ranks are servers"
    assert [job.options.transport for job in jobs(text).jobs] == ["tcp", "tcp", "rc"]


@pytest.mark.parametrize(
    ("changes", "job", "said"),
    [
        (("racks=8",), "collective: checkpoint", r"a\.yml:1  jobs\.a\.network: frontend is not a network of zone"),
        (("frontend.preprocess=2",), "collective: restore", "restore needs one storage host or more, but zone has 0"),
        (FRONT, "collective: ingest, preprocess_hosts: 3", "needs 3 preprocess hosts or more, but zone has 2"),
        (FRONT, "collective: checkpoint, placement: host1:eth1", "host1:eth1, which is not a NIC of host1"),
        (
            FRONT,
            "collective: all-reduce, placement: 'storage1,host1'",
            "storage1, which has no port in the network of this",
        ),
        (FRONT, "collective: all-reduce, network: frnt", "network: frnt is not a network"),
        (FRONT, "collective: checkpoint, every: 0s", "0s is not between 0 and 3600 s"),
        (FRONT, "collective: ingest, rate: fast", "fast is not a size"),
        (FRONT, "collective: ingest, network: backend, ranks: 2", "needs a trainer beside 2 servers, but has 2 ranks"),
    ],
)
def test_a_job_without_its_servers_or_ports_is_refused(changes: tuple[str, ...], job: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        plan_workload(zone(*changes), jobs(f"{{a: {{{job}}}}}"))


TRAINING = "t: {collective: all-reduce, size: 1M, qps: 4}"
SAVE = "s: {collective: checkpoint, size: 1M, qps: 4, iters: 1, repeat: background}"


def test_a_checkpoint_slows_training_only_where_they_share_nics() -> None:
    for changes, least, most in ((FRONT, 0.98, 1.02), (SHARED, 1.11, 10.0)):
        alone = iteration(zone(*changes), f"{{{TRAINING}}}")
        assert least * alone <= iteration(zone(*changes), f"{{{TRAINING}, {SAVE}}}") <= most * alone


def test_half_of_the_preprocess_hosts_need_twice_the_time_and_training_none() -> None:
    data = "d: {collective: ingest, size: 256K, qps: 4, iters: 2, repeat: background}"
    wide = (*FRONT[:-1], "frontend.link.fabric=200mbit")  # so that hosts' links are full, not those of racks
    whole, half = (
        forecast(zone(*wide, f"frontend.preprocess={many}"), jobs(f"{{{TRAINING}, {data}}}")).jobs for many in (4, 2)
    )
    assert half[1].sizes[0].seconds == pytest.approx(2 * whole[1].sizes[0].seconds, rel=0.1)
    assert half[0].sizes[0].seconds == pytest.approx(whole[0].sizes[0].seconds, rel=0.02)


def test_a_checkpoint_of_llama_3_takes_what_its_storage_takes() -> None:
    fabric = load_fabric("topologies/examples/llama3.yml").fabric
    assert len(fabric.nics) == 16_384
    for more, seconds, storage_bps in (("", 9.4, 7e12), (",storage_hosts=80", 33.0, 2e12)):
        found = forecast(fabric, load_workload(f"checkpoint-llama3{more}").workload)
        assert found.seconds == pytest.approx(seconds, rel=0.015)
        assert 1 < found.seconds / (prod((16_384, 4e9)) / storage_bps) < 1.02, "headers only"
        assert found.full.max() == pytest.approx(1.0), "links of storage hosts are never idle"
