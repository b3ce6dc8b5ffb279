"""`link.delay`: from the file's key to the policy, the plan, its timers and windows, data in flight, and the table."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from heddle.endpoints.nic.qpend import Message, QpInfo
from heddle.endpoints.nicloop import SEND_FRAMES, moderation_s
from heddle.endpoints.transports import find_transport
from heddle.endpoints.transports.rc import Rc, RcSender
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.model import Fabric
from heddle.fabric.pathdelay import PathDelays
from heddle.fabric.policydata import dump_policy, load_policy
from heddle.spec.linkspec import LinkSpec
from heddle.spec.load import FOR_ALL_LINKS, presets
from heddle.spec.plain import differences, dump_spec, load_spec
from heddle.traffic.inflight import MIN_QP_WINDOW, WINDOW_PACKETS, InFlight, shortfall, windows_of
from heddle.traffic.options import RunOptions
from heddle.traffic.plan import Plan, build_plan
from heddle.wire.layout import LAYOUTS
from tests.answers import Answers
from tests.unit import run_samples
from tests.unit.test_transports import HERE

SHAPE = "link.delay=shape"


def fabric(preset: str, *overrides: str) -> Fabric:
    return load_fabric(preset, overrides=overrides).fabric


def planned(preset: str, *overrides: str, **options: object) -> Plan:
    return build_plan(fabric(preset, *overrides), RunOptions(**options))  # type: ignore[arg-type]


def test_a_fabric_file_has_the_default_of_the_presets(tmp_path: Path) -> None:
    file = tmp_path / "mine.yml"
    for shape in ("clos\nracks: 2\nctsw: 2", "rail\npods: 2\nhosts_per_pod: 2\nnics_per_host: 2\nspines: 2"):
        file.write_text(f"name: mine\nshape: {shape}\n")
        assert load_fabric(str(file)).fabric.policy.delays == ()


@pytest.mark.parametrize("preset", presets())
def test_presets_model_no_delay(preset: str) -> None:
    plan = planned(preset)
    assert fabric(preset).policy.delays == ()
    assert {qp.delay_s for qp in plan.qps} == {0.0}
    assert {qp.window for qp in plan.qps} == {WINDOW_PACKETS}


def test_a_delay_is_one_value_or_two_or_the_shapes(answers: Answers) -> None:
    answers(lambda preset, said: fabric(preset, f"link.delay={said}").policy.delays)


def test_an_override_of_one_kind_of_link_leaves_the_other_as_the_file_has_it() -> None:
    assert fabric("tiny", "link.delay.host=shape").policy.delays == (500, 0, 0)
    assert fabric("tiny", "link.delay=1us", "link.delay.fabric=0").policy.delays == (1000, 0, 0)
    assert {("link", name) for name, each in LinkSpec.model_fields.items() if _of_two(each.annotation)} == FOR_ALL_LINKS


def _of_two(annotation: object) -> bool:
    """A group of the two values `host` and `fabric`."""
    return isinstance(annotation, type) and {*getattr(annotation, "model_fields", {})} == {"host", "fabric"}


@pytest.mark.parametrize("said", ["shape", "1us", "{host: 300ns, fabric: shape}"])
def test_a_delay_survives_records(said: str) -> None:
    loaded = load_fabric("dc", overrides=[f"link.delay={said}"])
    spec = load_spec(json.loads(json.dumps(dump_spec(loaded.spec))))
    assert spec == loaded.spec
    policy = loaded.fabric.policy
    assert load_policy(json.loads(json.dumps(dump_policy(policy)))) == policy
    assert differences(load_fabric("dc").spec, spec)[0][0].startswith("link.delay.")


def test_a_path_is_the_sum_of_its_links_whichever_is_taken() -> None:
    delays = PathDelays(fabric("dc", SHAPE))
    assert delays.between("rtsw1", "rtsw1") == 2 * 500  # host, RTSW, host
    assert delays.between("rtsw1", "rtsw2") == 2 * 500 + 2 * 1000
    assert delays.between("rtsw1", "rtsw3") == 2 * 500 + 2 * 1000 + 2 * 3000  # the other zone
    rail = PathDelays(fabric("rail", SHAPE))
    assert (rail.between("leaf1", "leaf1"), rail.between("leaf1", "leaf2")) == (1200, 3200)
    # Every equal cost path has the same delay: Checked by walking next hops: a frame's delay does not depend on the
    # path that a hash chooses.
    built = fabric("dc", SHAPE)
    delays = PathDelays(built)
    for src in built.edges:
        for dst in built.edges:
            if src is dst:
                continue
            sums = {src.name: {0}}
            while dst.name not in sums:
                beyond: dict[str, set[int]] = {}
                for name, seen in sums.items():
                    for port in (built.by_name[name].port(each) for each in hops(built, name, dst.name)):
                        levels = built.by_name[name].level, built.by_name[port.peer_node].level
                        link = built.policy.delay_ns(min(levels))
                        beyond.setdefault(port.peer_node, set()).update(each + link for each in seen)
                sums = beyond
            assert sums[dst.name] == {delays.between(src.name, dst.name) - 2 * built.policy.delay_ns(0)}


def hops(built: Fabric, switch: str, leaf: str) -> frozenset[str]:
    prefix = built.by_name[leaf].prefix
    assert prefix is not None
    return built.expected_next_hops[switch][prefix]


def test_delays_are_those_of_hardware_times_k() -> None:
    plan = planned("zone", SHAPE)
    by_ends = {(qp.flow.src, qp.flow.dst): qp.delay_s for qp in plan.qps}
    assert all(qp.rtt_s == 2 * qp.delay_s for qp in plan.qps)
    assert plan.k == 8_000
    assert by_ends["host1", "host2"] == pytest.approx(1000e-9 * 8_000)
    assert by_ends["host2", "host3"] == pytest.approx(3000e-9 * 8_000)
    assert planned("zone", SHAPE, "scale=100").qps[0].delay_s == pytest.approx(1000e-9 * 100)


@pytest.mark.parametrize("preset", ["tiny", "zone", "demo"])
def test_the_bandwidth_delay_product_is_that_of_400_gbit_hardware(preset: str) -> None:
    """400 Gb/s x 6 us there and back = 300 KB, whatever the scale."""
    assert planned(preset, SHAPE, placement="cyclic").propagation.bdp_packets == -(-300_000 // 4154)


def test_windows_have_room_for_what_travels_and_stay_the_same_over_qps() -> None:
    for qps in (1, 5, 16, 64):
        plan = planned("tiny", SHAPE, qps=qps)
        windows = [qp.window for qp in plan.qps if (qp.flow.src_rank, qp.flow.dst_rank) == (0, 1)]
        assert sum(windows) == WINDOW_PACKETS + 73
    assert {qp.window for qp in planned("tiny", SHAPE, window=3).qps} == {3}


def test_packets_and_runs_that_wait_for_delays_are_not_given_up() -> None:
    near, far = planned("tiny"), planned("tiny", "link.delay=1ms")
    assert far.qps[0].delay_s == pytest.approx(2 * 1e-3 * 4000)
    assert far.timeout_s > near.timeout_s + 2 * max(qp.delay_s for qp in far.qps)
    assert planned("tiny", "link.delay=1ms", timeout=14).timeout_s == pytest.approx(0.0671, rel=1e-3)
    # A run that waits for delays does not count as hung.
    short, long = (planned("tiny", *o, sizes=(64,), iters=10_000) for o in ([], ["link.delay=100us"]))
    steps = 2 * (4 - 1)
    assert long.max_seconds > 10_000 * steps * 2 * max(qp.delay_s for qp in long.qps)
    assert short.max_seconds == 600


def test_the_table_and_json_state_the_delay(answers: Answers) -> None:
    result = run_samples.result()

    def head(preset: str, *overrides: str, congestion: str = "none") -> str:
        plan, options = planned(preset, *overrides), replace(result.options, congestion=congestion)
        table = replace(result, options=options, propagation=plan.propagation, in_flight=plan.in_flight).table()
        return "\n".join(line for line in table.splitlines() if line.startswith(("#delay", "#window")))

    answers({
        "none": head("tiny"),
        "none, controlled": head("tiny", congestion="dcqcn"),
        "of the shape": head("tiny", SHAPE),
        "of hosts": head("tiny", "link.delay={host: 200ns, fabric: 0}"),
    })  # fmt: skip
    data = replace(result, propagation=planned("tiny", SHAPE).propagation).to_json()["propagation"]
    assert (data["least_ns"], data["most_ns"], data["k"], data["bdp_packets"]) == (1000, 3000, 4000, 73)
    assert data["rtt_s"] == pytest.approx(0.024)


FEW = [*range(1, WINDOW_PACKETS // MIN_QP_WINDOW + 1)]


@pytest.mark.parametrize("qps", FEW)
def test_a_sweep_over_qps_keeps_the_data_in_flight(qps: int) -> None:
    plan = build_plan(run_samples.FABRIC, RunOptions(qps=qps))
    pairs: dict[tuple[int, int], list[int]] = {}
    for qp in plan.qps:
        pairs.setdefault((qp.flow.src_rank, qp.flow.dst_rank), []).append(qp.window)
    for windows in pairs.values():
        assert sum(windows) == WINDOW_PACKETS
        assert max(windows) - min(windows) <= 1


@pytest.mark.parametrize("qps", [33, 48, 64, 100, 128])
def test_many_qps_have_two_packets_each_and_the_header_says_so(qps: int) -> None:
    assert set(windows_of(qps)) == {MIN_QP_WINDOW}
    text = InFlight.of(windows_of(qps)).text()
    assert text == f"{2 * qps} packets per connection in flight, 2 on each of {qps} QPs; 64 with up to 32 QPs"


def test_the_table_and_json_print_it() -> None:
    def table(short: bool = False, **options: int) -> str:
        return run_samples.result(RunOptions(**options)).table(short)  # type: ignore[arg-type]

    assert "#window   : 64 packets per connection in flight\n" in table()
    assert "#window   : 64 packets per connection in flight, 4 on each of 16 QPs\n" in table(qps=16)
    assert "#window   : 64 packets per connection in flight, 2 or 3 on each of 24 QPs\n" in table(qps=24)
    assert "#window   : 12 packets per connection in flight, 3 on each of 4 QPs\n" in table(qps=4, window=3)
    assert "#window" not in table(short=True, qps=16)
    assert "#window   : 256 packets" in table(short=True, qps=128)
    data = run_samples.result(RunOptions(qps=128)).to_json()["in_flight"]
    assert data == {"connection": 256, "qps": 128, "least": 2, "most": 2, "usual": 64}


def test_a_qp_sends_no_more_than_its_own_window() -> None:
    plan = build_plan(load_fabric("tiny").fabric, RunOptions(qps=24))
    transport = find_transport("rc").of(plan)
    assert isinstance(transport, Rc)
    payload = memoryview(bytes(4096 * 64))
    for window in (2, 3):
        end = transport.sender(replace(HERE, window=window))
        assert isinstance(end, RcSender)
        end.post(Message(payload, 0, 7, 0))
        assert end._requester.ready == window
        assert end._requester.params.ack_every < window
    assert transport.sender(QpInfo(5, HERE.flow, 0)).ready is False
    assert transport.params.window == 3


def test_windows_that_cannot_fill_the_path_are_named_with_the_product(answers: Answers) -> None:
    answers(shortfall)


@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
@pytest.mark.parametrize(("rate", "seconds"), [("10mbit", 0.001), ("50mbit", 0.001), ("1gbit", None), ("10gbit", None)])
def test_three_frames_or_a_millisecond(rate: str, seconds: float | None, family: str) -> None:
    overrides = [f"link.host={rate}", f"link.fabric={rate}", f"family={family}"]
    plan = build_plan(load_fabric("tiny", overrides=overrides).fabric, RunOptions(sizes=(1 << 16,)))
    bits = 8 * (4096 + LAYOUTS[plan.ip_version].overhead_bytes)
    rate_bps = plan.endpoints[0].rate_bps
    assert moderation_s(plan) == pytest.approx(3 * bits / rate_bps if seconds is None else seconds)
    assert moderation_s(plan) <= SEND_FRAMES * bits / rate_bps, "the port's queue would run empty"


def test_the_fastest_nic_decides() -> None:
    fabric = load_fabric("tiny", overrides=["link.host=1gbit", "link.exceptions.host2=100mbit"]).fabric
    plan = build_plan(fabric, RunOptions(sizes=(1 << 16,)))
    rates = {each.rate_bps for each in plan.endpoints}
    assert len(rates) == 2
    assert moderation_s(plan) == pytest.approx(3 * 8 * (4096 + LAYOUTS[4].overhead_bytes) / max(rates))
