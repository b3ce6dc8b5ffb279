"""DCQCN and Swift against traces that were computed by hand, and what must hold for any events."""

from __future__ import annotations

import random
from dataclasses import replace
from math import sqrt
from typing import Any

import pytest

from heddle.base.problems import InputError
from heddle.endpoints.congestion.controlled import CONTROLLERS, congestion_of
from heddle.endpoints.congestion.dcqcn import PROFILES, CongestionProfile, Dcqcn, DcqcnControl, DcqcnRule, power
from heddle.endpoints.congestion.ratecontrol import FAR_NS, NicFacts, Notifier, RateRecord, steps_for
from heddle.endpoints.congestion.swift import Swift, SwiftControl, SwiftRule
from heddle.endpoints.runoptions import run_options
from heddle.fabric.fabricfile import load_fabric
from heddle.runs.run import job_plan, plan_run
from heddle.traffic.options import RunOptions
from heddle.traffic.tunables import values_of

LINE = 2000.0
RULE = DcqcnRule(
    keep=0.5, alpha_ns=100, first_alpha=1.0, first_bps=1000.0, least_factor=0.5, min_bps=10.0, cut_divisor=2.0,
    cut_ns=400, clamp=False, clamp_after_time=True, time_ns=1000, byte_reset=10_000, threshold=1, ai_bps=10.0,
    hai_bps=50.0,
)  # fmt: skip


def test_a_trace_of_cuts_and_increases() -> None:
    control = DcqcnControl(RULE, LINE)
    assert (control.rate_bps, control.deadline_ns) == (LINE, FAR_NS)
    control.sent(50_000, 0)  # no CNP yet: bytes do not count
    assert control.rate_bps == LINE

    control.notified(0)  # the first: rate = target = 1000, alpha = 1, a cut by alpha / 2
    assert (control.alpha, control.target_bps, control.rate_bps) == (1.0, 1000.0, 500.0)
    control.notified(250)  # alpha has been halved at 100 and 200; the next cut is possible at 400
    assert (control.alpha, control.rate_bps, control.deadline_ns) == (0.25, 500.0, 400)
    control.expire(399)  # at 300 alpha = 0.25 / 2 + 1 / 2
    assert (control.alpha, control.rate_bps) == (0.625, 500.0)
    control.expire(400)  # alpha = 0.3125 first, then the cut: 500 x (1 - 0.3125 / 2); no increase since the last cut
    assert (control.alpha, control.rate_bps, control.target_bps) == (0.3125, 421.875, 1000.0)

    assert control.deadline_ns == 1400
    control.expire(1400)  # T = 1, fast recovery: (421.875 + 1000) / 2
    assert (control.target_bps, control.rate_bps) == (1000.0, 710.9375)
    control.expire(2400)  # T = 2, additive: (710.9375 + 1010) / 2
    assert (control.target_bps, control.rate_bps) == (1010.0, 860.46875)
    control.sent(10_000, 2500)  # T = 2, B = 1, additive: (860.46875 + 1020) / 2
    assert (control.target_bps, control.rate_bps) == (1020.0, 940.234375)
    control.sent(9_999, 2500)
    assert control.rate_bps == 940.234375
    control.sent(1, 2500)  # T = 2, B = 2, hyper: (940.234375 + 1070) / 2
    assert (control.target_bps, control.rate_bps) == (1070.0, 1005.1171875)
    alpha = 0.3125 * 0.5**22  # updates from 500 to 2600, none with a CNP
    control.notified(2600)  # the last cut is long ago: at once, and the target is the rate, since it has increased
    assert control.alpha == pytest.approx(alpha)
    assert (control.target_bps, control.rate_bps) == (1005.1171875, 1005.1171875 * (1 - alpha / 2))
    assert control.deadline_ns == 3600, "the timer starts again"


def test_without_a_byte_counter_the_timer_counts_for_both() -> None:
    control = DcqcnControl(replace(RULE, byte_reset=0), LINE)
    control.notified(0)  # 500, target 1000
    targets = []
    for at in (1000, 2000, 3000):
        control.sent(1 << 30, at)
        targets.append(control.target_bps)
    assert targets == [1000.0, 1010.0, 1060.0]


@pytest.mark.parametrize(
    ("clamp", "after_time", "target"), [(False, False, 1000.0), (True, False, 750.0), (False, True, 750.0)]
)
def test_when_a_cut_sets_the_target(clamp: bool, after_time: bool, target: float) -> None:
    control = DcqcnControl(replace(RULE, clamp=clamp, clamp_after_time=after_time), LINE)
    control.notified(0)
    control.expire(1000)  # a timer event: 750
    control.notified(1000)
    assert control.target_bps == target


def test_a_cut_leaves_the_least_share_and_the_lowest_rate() -> None:
    rule = replace(RULE, keep=1.0, cut_divisor=1.0, least_factor=0.25, cut_ns=1, time_ns=FAR_NS)
    control = DcqcnControl(rule, LINE)
    found = []
    for at in range(0, 8, 2):
        control.notified(at)
        found.append(control.rate_bps)
    assert found == [250.0, 62.5, 15.625, 10.0]


@pytest.mark.parametrize("seed", range(6))
def test_invariants_for_any_events(seed: int) -> None:
    dice = random.Random(seed)
    rule = replace(
        RULE, keep=dice.choice([0.0, 0.5, 1019 / 1024]), first_bps=dice.choice([0.0, 700.0]),
        cut_ns=dice.choice([1, 400]), byte_reset=dice.choice([0, 64, 10_000]), threshold=dice.choice([1, 5]),
        clamp=dice.random() < 0.5, clamp_after_time=dice.random() < 0.5, least_factor=dice.choice([0.0, 0.5, 1.0]),
    )  # fmt: skip
    control, now = DcqcnControl(rule, LINE), 0
    for _ in range(2000):
        now += dice.choice([0, 1, 7, 99, 400, 5_000])
        event = dice.randrange(3)
        if event == 0:
            control.notified(now)
        elif event == 1:
            control.sent(dice.randrange(1, 9000), now)
        else:
            control.expire(now)
        assert rule.min_bps <= control.rate_bps <= control.target_bps <= LINE or control.rate_bps == rule.min_bps
        assert 0.0 <= control.alpha <= 1.0
        assert control.deadline_ns > now, "a deadline is in the future"
    if rule.byte_reset:
        return
    control.expire(now + 1000 * rule.time_ns)
    assert control.rate_bps == LINE, "without CNPs, the rate goes back to the line rate"


def test_power_and_late_calls() -> None:
    assert [power(0.5, n) for n in (0, 1, 5)] == [1.0, 0.5, 0.03125]
    assert power(0.9, 1234) == pytest.approx(0.9**1234)
    # Late calls give the same state as calls in time: One call of `expire` for a long time has the effect of many
    # calls.
    rule = replace(RULE, keep=0.75)
    dice, late, early, now = random.Random(5), DcqcnControl(rule, LINE), DcqcnControl(rule, LINE), 0
    for _ in range(50):
        step = dice.randrange(1, 3000)
        for at in range(now, now + step, 13):
            early.expire(at)
        now += step
        for control in (late, early):
            control.notified(now)
        assert late.alpha == pytest.approx(early.alpha, rel=1e-12)
        assert late.rate_bps == pytest.approx(early.rate_bps, rel=1e-12)


def test_a_receiver_reports_the_first_mark_and_then_one_per_gap() -> None:
    notifier, due = Notifier(100), []
    for now in range(0, 500, 10):
        notifier.expire(now)
        if now < 250 or now == 400:
            notifier.marked(now)
        if notifier.due:
            due.append(now)
            notifier.sent()
    # 0; at 100 and 200 for marks within the gap; at 300 for those from 210 to 240; 400 is a new mark, after the gap
    assert due == [0, 100, 200, 300, 400]
    assert notifier.deadline_ns == FAR_NS
    # Cnps wait for no gap of zero.
    notifier = Notifier(0)
    for now in (5, 5, 6):
        notifier.marked(now)
        assert notifier.due
        notifier.sent()


def test_values_of_hardware_are_scaled() -> None:
    made = Dcqcn.of({each.name: each.default for each in Dcqcn.tunables}, 4000, 4154)
    rule = made.rule
    assert (rule.alpha_ns, rule.cut_ns, rule.time_ns) == (4_000_000, 16_000_000, 1_200_000_000)
    assert (rule.ai_bps, rule.hai_bps, rule.min_bps) == (1250.0, 12_500.0, 250.0)
    assert (rule.keep, rule.first_alpha, rule.cut_divisor, rule.least_factor) == (1019 / 1024, 1023 / 1024, 2.0, 0.5)
    assert rule.byte_reset == 32767 * 64
    assert (made.cnp.gap_ns, made.cnp.dscp) == (16_000_000, 48)
    swift = Swift.of({each.name: each.default for each in Swift.tunables}, 4000, 4154)
    assert (swift.rule.base_ns, swift.rule.fs_ns) == (16_000_000, 16_000_000)
    assert (swift.rule.frame_bits, swift.cnp.gap_ns) == (33232, 16_000_000)


@pytest.mark.parametrize("name", CONTROLLERS)
def test_defaults_are_in_their_ranges(name: str) -> None:
    kind = CONTROLLERS[name]
    values = {each.name: each.default for each in kind.tunables}
    assert values_of(name, kind.tunables, tuple(values.items()), 100_000) == values
    assert all(each.text and len(each.text) < 80 for each in kind.tunables)


def test_a_run_has_the_parameters_that_its_options_set() -> None:
    fabric = load_fabric("tiny").fabric
    assert congestion_of(job_plan(fabric, RunOptions())) is None
    plan = job_plan(fabric, RunOptions(congestion="dcqcn", own={"congestion_set": (("rpg_time_reset", 10.0),)}))
    found = congestion_of(plan)
    assert found is not None and isinstance(found.congestion, Dcqcn)
    assert plan.control is not None
    assert (plan.control.name, plan.control.values["rpg_time_reset"]) == ("dcqcn", 10.0)
    assert found.congestion.rule.time_ns == 10_000 * plan.k
    with pytest.raises(InputError, match="rpg_gd=9 is outside 10 to 11"):
        plan_run(fabric, RunOptions(congestion="dcqcn", own={"congestion_set": (("rpg_gd", 9.0),)}))


def test_the_record_of_a_rate_is_bounded_and_keeps_the_course() -> None:
    record, ms = RateRecord(8), 1_000_000
    for at in range(1000):
        record.add(at * ms, 100.0 - at / 100)
    steps = record.steps()
    assert 2 < len(steps) <= 8
    assert steps[0][0] == 0 and list(steps) == sorted(steps)
    assert steps[-1][1] == pytest.approx(90.01), "the last rate is the rate that holds"
    again = RateRecord(8)
    for at in range(1000):
        again.add(at * ms, 50.0)
    assert again.steps() == ((0, 50.0),), "a rate that does not change is one step"
    assert steps_for(1) == 1024 and steps_for(1 << 16) == 16


# frame_bits / base: the line of 1 Gb/s carries 10 packets of 1,000 bits in the base target of 10 us.
SWIFT_RULE = SwiftRule(
    base_ns=10_000,
    fs_ns=0,
    fs_min=0.1,
    fs_max=100.0,
    ai=1.0,
    beta=0.8,
    max_mdf=0.5,
    least=0.01,
    resets=3,
    frame_bits=1000,
)
SWIFT_LINE = 1e9


def test_the_window_follows_the_target_delay() -> None:
    control = SwiftControl(SWIFT_RULE, SWIFT_LINE, 0)
    assert (control.window, control.rate_bps) == (10.0, SWIFT_LINE)
    control.acknowledged(5, 4_000, 100_000)  # below the target: + 5 / 10
    assert control.window == 10.5
    control.acknowledged(1, 16_000, 200_000)  # above: x (1 - 0.8 x 6 / 16)
    assert control.window == pytest.approx(10.5 * 0.7)
    control.acknowledged(1, 16_000, 215_999)  # within one round trip (16,000): no second decrease
    assert control.window == pytest.approx(10.5 * 0.7)
    control.acknowledged(1, 100_000, 216_000)  # 1 - 0.8 x 0.9 = 0.28 is limited to 1 - max_mdf
    assert control.window == pytest.approx(10.5 * 0.7)  # the new delay is the round trip: 100,000
    control.acknowledged(1, 100_000, 300_000)
    assert control.window == pytest.approx(10.5 * 0.7 * 0.5)
    control.acknowledged(3, None, 500_000)  # no delay is known of packets that were sent again
    assert control.window == pytest.approx(10.5 * 0.7 * 0.5)
    # A target has the propagation of its own path, and so has the first window.
    near, far = (SwiftControl(SWIFT_RULE, SWIFT_LINE, rtt) for rtt in (2_000, 6_000))
    assert (near.window, far.window) == (12.0, 16.0)
    for each in (near, far):
        each.acknowledged(1, 14_000, 50_000)
    assert near.window == pytest.approx(12.0 * (1 - 0.8 * 2 / 14)) and far.window == 16.0 + 1 / 16


def test_losses_reduce_the_window_of_swift() -> None:
    control = SwiftControl(SWIFT_RULE, SWIFT_LINE, 0)
    assert control.rate_bps == SWIFT_LINE
    control.lost(False, 100_000)  # a NAK: 1 - max_mdf
    control.lost(False, 109_999)  # in the same round trip
    assert (control.window, control.rate_bps) == (5.0, SWIFT_LINE / 2)
    for at in (200_000, 300_000, 400_000):
        control.lost(True, at)
        control.acknowledged(1, None, at + 1)
    assert control.window == 5.0 / 8, "timeouts that are not in a row"
    for at in (500_000, 500_001, 500_002):
        control.lost(True, at)
    assert control.window == SWIFT_RULE.least


def test_a_cnp_counts_as_twice_the_target_and_small_windows_are_rates() -> None:
    control = SwiftControl(SWIFT_RULE, SWIFT_LINE, 0)
    control.notified(0)  # 1 - 0.8 / 2
    assert control.window == pytest.approx(6.0)
    control.notified(9_999)
    assert control.window == pytest.approx(6.0)
    control.notified(10_000)
    assert control.window == pytest.approx(3.6)
    # A window below one packet is a rate.
    control = SwiftControl(SWIFT_RULE, SWIFT_LINE, 0)
    for step in range(10):
        control.notified(step * 10_000)
    assert control.window == pytest.approx(10 * 0.6**10)
    assert control.rate_bps == pytest.approx(10 * 0.6**10 * 1000 / 10e-6)
    control.acknowledged(1, 5_000, 200_000)  # below 1, a packet adds ai
    assert control.window == pytest.approx(10 * 0.6**10 + 1.0)


def test_small_windows_have_larger_targets() -> None:
    rule = SwiftRule(10_000, 3_000, 0.25, 100.0, 1.0, 0.8, 0.5, 0.01, 5, 1000)
    a = 3_000 / (1 / sqrt(0.25) - 1 / sqrt(100))  # 3,000 / 1.9
    assert rule.target_ns(100.0) == pytest.approx(10_000)
    assert rule.target_ns(400.0) == pytest.approx(10_000)
    assert rule.target_ns(0.25) == pytest.approx(13_000)
    assert rule.target_ns(0.01) == pytest.approx(13_000)
    assert rule.target_ns(4.0) == pytest.approx(10_000 + a * 0.5 - a * 0.1)


@pytest.mark.parametrize("seed", range(6))
def test_swift_holds_its_bounds_for_any_events(seed: int) -> None:
    dice = random.Random(seed)
    control, now = SwiftControl(SWIFT_RULE, SWIFT_LINE, 0), 0
    for _ in range(2000):
        now += dice.choice([0, 1, 999, 50_000])
        delay = dice.choice([None, 0, 1, 9_999, 10_001, 10**9])
        if dice.random() < 0.3:
            control.notified(now)
        elif dice.random() < 0.1:
            control.lost(dice.random() < 0.5, now)
        else:
            control.acknowledged(dice.randrange(20), delay, now)
        assert SWIFT_RULE.least <= control.window <= 4096
        assert 0 < control.rate_bps <= SWIFT_LINE
        assert control.deadline_ns == FAR_NS


def test_the_default_profile_follows_from_line_rate_frame_and_round_trip() -> None:
    found = PROFILES["default"](NicFacts(400_000, 4154, 0)).values
    assert found == {
        "roce_cc_shaper_coalesce": 1, "init_cr": 33333, "init_growth": 10,
        "rpg_time_reset": 4, "rpg_byte_reset": 519, "rpg_threshold": 8,
        "rpg_hai_rate": 1333, "rpg_ai_rate": 20, "rpg_gd": 10, "rpg_min_dec_fac": 80, "rate_reduce_monitor_period": 1,
        "min_time_between_cnps": 2, "clamp_tgt_rate_after_time_inc": 0, "rpg_min_rate": 2000,
    }  # fmt: skip
    # Half the rate: half of each rate, twice the time of a frame. A round trip of 9 us is added to both times.
    slower = PROFILES["default"](NicFacts(200_000, 4154, 9)).values
    assert slower["init_cr"] == 16667 and slower["rpg_hai_rate"] == 667 and slower["rpg_min_rate"] == 1000
    assert slower["rpg_time_reset"] == 8 + 9 and slower["rate_reduce_monitor_period"] == 10
    # Very slow links stay in the ranges.
    assert min(PROFILES["default"](NicFacts(10, 1082, 0)).values.values()) == 0
    assert PROFILES["default"](NicFacts(10, 1082, 0)).values["rpg_ai_rate"] == 1
    # Those of NVIDIA are the defaults of the table; Meta's differ in the switches.
    nvidia, meta = (PROFILES[name](NicFacts(400_000, 4154, 0)) for name in ("nvidia", "meta"))
    assert (nvidia.values, nvidia.ecn_factor, meta.values, meta.ecn_factor) == ({}, 1, {}, 2)


@pytest.mark.parametrize("preset", ["tiny", "demo", "zone", "rail"])
@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_is_in_the_ranges_and_single_parameters_override_it(preset: str, profile: CongestionProfile) -> None:
    fabric = load_fabric(preset, overrides=["link.delay=shape"]).fabric
    plain = RunOptions(congestion="dcqcn", own={"congestion_profile": profile})
    found = job_plan(fabric, plain).control
    assert found is not None
    line = min(port.rate_bps for host in fabric.hosts for port in host.ports) * fabric.policy.k / 1e6
    assert values_of("dcqcn", Dcqcn.tunables, tuple(found.values.items()), line) == found.values
    assert not found.settings
    changed = replace(plain, own={**plain.own, "congestion_set": (("rpg_hai_rate", 7.0),)})
    own = job_plan(fabric, changed).control
    assert own is not None and own.values == {**found.values, "rpg_hai_rate": 7.0}
    assert (own.settings, own.profile, own.ecn_factor) == ("rpg_hai_rate=7", profile, 2 if profile == "meta" else 1)


NVIDIA: dict[str, Any] = {"cc": "dcqcn", "cc_profile": "nvidia"}


def test_dcqcn_has_the_default_profile_and_swift_has_none() -> None:
    fabric = load_fabric("tiny").fabric
    runs = [(run_options(cc="dcqcn"), "default"), (run_options(cc="swift"), ""), (run_options(**NVIDIA), "nvidia")]
    for options, profile in runs:
        control = job_plan(fabric, options).control
        assert control is not None and control.profile == profile
    with pytest.raises(InputError, match="--cc-profile nvidia is not for --cc swift"):
        run_options(**{**NVIDIA, "cc": "swift"})


def test_a_rate_that_begins_below_the_line_increases_from_the_first_packet_on() -> None:
    control = DcqcnControl(replace(RULE, start_bps=500.0, byte_reset=0), LINE)
    assert (control.rate_bps, control.target_bps, control.deadline_ns) == (500.0, 500.0, FAR_NS)
    control.sent(100, 50)
    assert control.deadline_ns == 1050
    control.expire(3050)  # T = 1: fast recovery; T = 2: additive; T = 3: hyper
    assert (control.target_bps, control.rate_bps) == (560.0, 532.5)
    assert DcqcnControl(replace(RULE, start_bps=5000.0), LINE).rate_bps == LINE


def test_until_the_first_cnp_a_rate_grows_at_each_timer_event_up_to_the_line() -> None:
    control = DcqcnControl(replace(RULE, start_bps=100.0, growth=1.5), LINE)
    control.sent(1, 0)
    control.expire(2 * RULE.time_ns)
    assert control.rate_bps == control.target_bps == 225.0
    control.notified(2 * RULE.time_ns)
    target = control.target_bps
    control.expire(3 * RULE.time_ns)
    assert (control.rate_bps, control.target_bps) == ((target / 2 + target) / 2, target), "then it is fast recovery"
    free = DcqcnControl(replace(RULE, start_bps=100.0, growth=1.5), LINE)
    free.sent(1, 0)
    free.expire(20 * RULE.time_ns)
    assert free.rate_bps == LINE
