"""Limits of this machine, for real: raised by `up` of a fabric with many links, restored by the last `down`.

Labs of other users may run beside these. So the tests look at what Heddle's own record says, and at this machine's
sysctls only as far as no other lab keeps them raised.
"""

from __future__ import annotations

import sys

import pytest

from heddle.base import state
from heddle.cli.progress import PlainObserver
from heddle.fabric.shapes import build
from heddle.host import limits
from heddle.host.limits import HERE
from heddle.lab import lifecycle as life
from heddle.spec.shapes.clos import ClosSpec
from heddle.testing.pool import Pool

# 288 links of hosts: 1,152 neighbours, and 1,024 is the kernel's default.
SIZES = {"racks": 3, "ctsw": 2, "hosts_per_rack": 12, "nics_per_host": 8}
KEYS = [key for limit in limits.LIMITS for key in limit.factors]


@pytest.fixture
def before() -> dict[str, int]:
    """The sysctls as this machine has them without labs."""
    _, raised = HERE.state()
    values = {key: raised.get(key, HERE.value(key)) for key in KEYS}
    return {key: value for key, value in values.items() if value is not None}


def sysctls_too_low(lab: str, needs: dict[str, int]) -> list[limits.Shortage]:
    """Without the mode of HTB, which any lab of another test sets and restores meanwhile (test_bursts.py)."""
    return [each for each in HERE.shortages(lab, needs) if each.limit is not limits.BURSTS]


def restored(before: dict[str, int]) -> bool:
    """Whether the sysctls are as before, or the record still knows how to get there for other labs."""
    labs, raised = HERE.state()
    return all(raised.get(key, HERE.value(key)) == value for key, value in before.items()) and (
        labs != [] or not raised
    )


def test_up_raises_what_a_fabric_of_many_links_needs_and_down_restores_it(
    name: str, heddle_pool: Pool, before: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    heddle_pool.drop_idle()
    spec = ClosSpec.model_validate({"name": name, **SIZES})
    needs = limits.needs_of(build(spec))
    short = sysctls_too_low(name, needs)  # all limits, where no other lab of this machine has raised some of them
    if not short:
        labs = ", ".join(HERE.state()[0]) or "none"
        pytest.skip(f"this machine's limits are high enough for {needs} (labs: {labs})")
    script = life.script_of(spec)
    assert short and all(f"sysctl -w {next(iter(each.limit.factors))}=" in script for each in short)
    life.up(spec, observer=PlainObserver(sys.stderr))
    assert all((HERE.value(key) or 0) >= need for key, need in needs.items())
    assert name in HERE.state()[0]
    said, script = capsys.readouterr().err, (state.lab_dir(name) / "up.sh").read_text()
    if any(each.limit is limits.ARP for each in short):
        assert "raised net.ipv4.neigh.default.gc_thresh1/2/3 from" in said
    assert "raised " in said and "sysctl -w " in script
    life.down(name)
    assert name not in HERE.state()[0]
    assert restored(before)
