"""`queues set`: the same words as for a fabric file, and nothing that a running lab cannot change."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from heddle.base.problems import InputError
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.model import Fabric
from heddle.lab.thresholds import changed

HOSTS, LEAVES, SPINES = range(3)


@pytest.fixture(scope="module")
def tiny() -> Fabric:
    return load_fabric("tiny").fabric


def refused(fabric: Fabric, *settings: str, levels: Collection[int] = (HOSTS, LEAVES, SPINES)) -> str:
    with pytest.raises(InputError) as caught:
        changed(fabric, fabric.policy.queues, settings, levels)
    return str(caught.value)


def test_several_settings_hold_together_and_all_errors_are_reported_at_once(tiny: Fabric) -> None:
    made = changed(
        tiny, tiny.policy.queues, ["ecn.kmin=500KB", "queues.ecn.kmax=800KB", "pfc.watchdog.detect=2s", "alpha=2"]
    )
    assert (made.ecn.kmin, made.ecn.kmax, made.pfc.watchdog.detect, made.alpha) == (500_000, 800_000, 2 * 10**9, 2.0)
    back = changed(tiny, made, ["ecn.kmin=40KB", "ecn.kmax=160KB", "pfc.watchdog.detect=1s", "alpha=1"])
    assert back == tiny.policy.queues
    # All errors are reported at once.
    text = refused(tiny, "lossless=[3,4]", "foo=1", "pfc.xon=90KB")
    assert all(word in text for word in ("lossless is fixed", "foo is no key", "pfc.xon: 90KB"))


def test_buffers_are_set_where_they_are(tiny: Fabric) -> None:
    buffer = changed(tiny, tiny.policy.queues, ["buffer=20MB"]).buffer
    assert set(buffer.switches) == {20_000_000}
    assert buffer.host == tiny.policy.queues.buffer.host
    assert changed(tiny, tiny.policy.queues, ["buffer.ctsw=30MB"]).buffer.switches == ("auto", 30_000_000, "auto")
    # Settings for hosts are not set at switches.
    text = refused(tiny, "buffer.host=2MB", levels=[LEAVES])
    assert "is for hosts, but --switch names switches" in text
    assert changed(tiny, tiny.policy.queues, ["buffer.host=2MB"]).buffer.host == 2_000_000
    # A buffer that none of the switches has is not set.
    text = refused(tiny, "buffer.rtsw=2MB", levels=[SPINES])
    assert "buffer.rtsw is for RTSWs, and none of the chosen nodes is one" in text
    assert "hint: use buffer.ctsw" in text
    assert "hint: use buffer.rtsw or buffer.ctsw" in refused(tiny, "buffer.atsw=2MB")
    buffer = changed(tiny, tiny.policy.queues, ["buffer=3MB"], [SPINES]).buffer
    assert buffer.switches == ("auto", 3_000_000, "auto")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["ecn.kmax=20KB"], "queues.ecn.kmin: 40KB is above kmax, 20KB\n"),
        (["pfc.xon=90KB"], "queues set  queues.pfc.xon: 90KB is not below xoff, 60KB\n"),
        (["ecn.kmin=many"], "queues set  queues.ecn.kmin: many is not a size\n"),
        (["weights.3=4"], "queues set  weights.3 is fixed when a lab is created: recreate the lab\n"),
        (["scheduler=ets"], "./inv down, then ./inv up FABRIC --set queues.scheduler=..."),
        (["xoff=1KB"], "queues set  xoff is no key of queues\n            hint: did you mean pfc.xoff?"),
        (["ecn.kmx=1KB"], "did you mean ecn.kmax?"),
        (["ecn.kmax"], "ecn.kmax is not path=value"),
        (["ecn=5"], "queues set  ecn is a group of keys\n            hint: as ./inv queues set ecn.enabled=VALUE"),
        (
            ["pfc.xoff=40KB"],
            "40KB is not below xoff, 40KB\n  hint: a class is paused at xoff and resumes at xon; try 26KB",
        ),
        (["pfc.quanta=60000", "pfc.watchdog.detect=10ms"], "the watchdog treats a pause of 10ms as a storm"),
        (["buffer=100KB"], "queues.buffer"),
        (["pfc.headroom=4213"], "queues set  queues.pfc.headroom: 4213 is below one frame of 4214 bytes"),
    ],
)
def test_invalid_settings_are_reported_as_for_a_fabric_file(tiny: Fabric, settings: list[str], said: str) -> None:
    assert said in refused(tiny, *settings)
