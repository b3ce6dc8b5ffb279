"""Measures: what settings of a run cannot say, as a Python function. A new one is a file here and a line of MEASURES.

In:  a Measuring (measuring.py): the lab, the fabric, the options of the file, and `run`, which keeps what it runs.
Out: the figures that the measure declares, by name; what is not known is left out. Expressions use `NAME(RUN)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from heddle_plugins.experiments.measures import convergence, icrc_changes, random_flows, soak, te_removed
from heddle_plugins.experiments.measuring import Measure

MEASURES: Final[Mapping[str, Measure]] = {
    "convergence": convergence.MEASURE,
    "icrc_changes": icrc_changes.MEASURE,
    "random_flows": random_flows.MEASURE,
    "soak": soak.MEASURE,
    "te_removed": te_removed.MEASURE,
}
