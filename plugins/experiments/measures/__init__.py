"""Measures: what settings of a run cannot say, as a Python function. A new one is a file here and a line of MEASURES;
or a part that another plugin registers.

In:  a Measuring (runs/measuring.py): the lab, the fabric, the options of the file, and `run`, which keeps what it runs.
Out: the figures that the measure declares, by name; what is not known is left out. Expressions use `NAME(RUN)`.
"""

from __future__ import annotations

from typing import Final

from heddle.base.plugins import Registry
from heddle.runs.measuring import Measure
from heddle_plugins.experiments.measures import convergence, icrc_changes, random_flows, soak

MEASURES: Final[Registry[Measure]] = Registry(
    "measure",
    {
        "convergence": convergence.MEASURE,
        "icrc_changes": icrc_changes.MEASURE,
        "random_flows": random_flows.MEASURE,
        "soak": soak.MEASURE,
    },
    Measure,
)
