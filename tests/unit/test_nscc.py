"""NSCC: its quadrants by hand, and 8 senders at one queue that marks and trims."""

from __future__ import annotations

import heapq
import random
from typing import Any, Final

import pytest

from heddle.base.problems import InputError
from heddle.endpoints.congestion.controlled import CONTROLLERS
from heddle.endpoints.congestion.ratecontrol import ControlOptions, NicFacts
from heddle.traffic.tunables import values_of
from heddle_plugins.congestion.nscc import Nscc, NsccControl

LINE, FRAME, K = 100e9, 4178, 1  # the reference network: 12 us are 150,000 bytes
US: Final = 1000


def control(k: int = K, line: float = LINE, trims: bool = True, **settings: Any) -> NsccControl:
    on = NicFacts(line * k / 1e6, FRAME, 0.0, trims)
    profile = Nscc.options(congestion_set=tuple(settings.items())).profile(on)
    values = {each.name: profile.values.get(each.name, each.default) for each in Nscc.tunables} | settings
    return Nscc.of(values, k, FRAME).control(line, 0)


def test_each_quadrant_does_what_it_should_and_no_other() -> None:
    most = 1.5 * 150_000 / FRAME
    assert "nscc" in CONTROLLERS and control().window == pytest.approx(most)
    settings = {"base_rtt": 12.0, "fi_scale": 0.0, "eta": 0.0, "adjust": 1000, "fast_delay": 0.0, "qa_threshold": 1000}

    def after(marked: bool, delay_us: float, packets: int = 8, **more: Any) -> float:
        made = control(**{**settings, **more})
        made.window = 20.0
        made.answered(0, 12 * US, False, 9, 0)  # the base round trip, and the start of a period
        for _ in range(packets):
            made.answered(1, round((12 + delay_us) * US), marked, 9, 5 * US)
        made.answered(0, None, True, 9, 13 * US)  # more than a round trip later, increases are applied
        return made.window

    assert after(False, 3) == pytest.approx(20 + 8 * 4 * (9 - 3) / 12 / 20)  # proportional: T is 9 us with trimming
    assert after(False, 30) == pytest.approx(20 + 8 * 5 / 20)  # fair
    assert after(True, 3) == 20, "marked, and below the target: nothing"
    assert after(True, 30) == 20, "the mean delay is still below the target"
    ewma = 1 - (1 - 0.5) ** 8
    mean = 30 * ewma
    once = 20 * (1 - 0.8 * (mean - 9) / mean)
    first = 30 * 0.5  # the decrease comes with the first sample, and then not again in this round trip
    assert after(True, 30, ewma=0.5) == pytest.approx(20 * (1 - 0.8 * (first - 9) / first)) != once
    assert after(True, 1000, ewma=1) == 10, "at most a half"
    assert after(False, 0, fi_scale=0.25, fast_delay=1, ai=0, packets=30) == pytest.approx(20 + 10 * 0.25)
    assert after(False, 3, trims=False) == pytest.approx(20 + 8 * 4 * (12 - 3) / 12 / 20)  # T is the round trip


def test_a_trimmed_packet_takes_itself_away_and_quick_adapt_what_did_not_arrive() -> None:
    made = control()
    made.answered(1, 12 * US, False, 40, 1)
    made.window = 30.0
    made.trimmed(False, 29, 2)
    assert made.window == 29
    for _ in range(4):
        made.answered(1, 14 * US, False, 20, 10 * US)
    made.trimmed(True, 20, 22 * US)  # base_rtt + T are over, and 4 packets have arrived: less than the most / 8
    assert made.window == 4
    made.answered(1, 40 * US, True, 20, 23 * US)
    assert made.window == 4, "answers to what was in flight change nothing"
    made.lost(True, 24 * US)
    assert made.window == 3
    for _ in range(9):
        made.lost(True, 25 * US)
    assert made.window == 1


def test_a_target_below_four_packets_is_refused_in_a_sentence_and_constants_scale_with_k() -> None:
    with pytest.raises(InputError) as error:
        control(k=4000, line=100e6, target=0.3)
    (problem,) = error.value.problems
    assert problem.what == "--cc-set target=0.3"
    assert problem.why == "gives a target delay of 0.3 us, below 4 packet times, 0.334 us"
    control(k=4000, line=100e6, target=0.34)
    one, other = control().window, control(k=4000, line=LINE / 4000).window
    assert one == pytest.approx(other), "the same network, 4,000 times slower"
    kind: type[ControlOptions] = Nscc.options
    names = {each.name for each in Nscc.tunables}
    assert {*kind().profile(NicFacts(400_000, FRAME, 6)).values} <= names
    with pytest.raises(InputError, match="is not a parameter of nscc"):
        values_of("nscc", Nscc.tunables, (("gama", 1.0),))


def jain(senders: int, kmax: float = 160e3, **settings: Any) -> tuple[float, float, int]:
    """Jain's index and the share of the line of senders at one queue for 8 s at 25 Mb/s, and the trimmed packets.

    Up to kmax the queue marks as in the presets, and then all packets.
    """
    line, idle, frame_s, dice = 25e6, 0.003, 8 * FRAME / 25e6, random.Random(1)
    ends = [control(16_000, line, **settings) for _ in range(senders)]
    flying, got, free = [0] * senders, [0] * senders, [0.0] * senders
    events: list[tuple[float, int, str, int, float, bool]] = []
    busy, trims, number = 0.0, 0, 0

    def push(at: float, what: str, who: int, sent: float, marked: bool = False) -> None:
        nonlocal number
        number += 1
        heapq.heappush(events, (at + (idle / 2 + dice.random() * 0.001), number, what, who, sent, marked))

    def send(who: int, now: float) -> None:
        while flying[who] < max(1, int(ends[who].window)):
            flying[who] += 1
            free[who] = max(now, free[who]) + frame_s
            push(free[who], "arrives", who, now)

    for who in range(senders):
        send(who, 0.0)
    while events and events[0][0] < 8:
        now, _, what, who, sent, marked = heapq.heappop(events)
        ns = round(now * 1e9)
        if what == "arrives":
            depth = max(0.0, busy - now) * line / 8
            if depth + FRAME > 367_000:
                trims += 1
                push(now, "nack", who, sent)
                continue
            chance = 0.0 if depth < 40e3 else 1.0 if depth >= kmax else 0.2 * (depth - 40e3) / 120e3
            busy = max(busy, now) + frame_s
            push(busy, "sack", who, sent, dice.random() < chance)
            continue
        flying[who] -= 1
        if what == "sack":
            got[who] += 1
            ends[who].answered(1, round((now - sent) * 1e9), marked, flying[who], ns)
        else:
            ends[who].trimmed(False, flying[who], ns)
        send(who, now)
    return sum(got) ** 2 / senders / sum(each**2 for each in got), sum(got) * frame_s / 8, trims


def test_equal_senders_get_equal_shares_of_a_full_line() -> None:
    for senders, least in ((8, 0.98), (16, 0.97)):
        index, share, trims = jain(senders)
        assert index >= least and share > 0.97 and trims > 100
    # The perturbation: with a base that only the first senders have seen, the others take its difference for free.
    assert jain(8, 60e3)[0] > 0.9 and jain(8, 60e3, base_rtt=100)[0] < 0.7
