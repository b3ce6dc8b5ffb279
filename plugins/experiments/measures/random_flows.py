"""Random flows over equal links: how uneven a perfect hash is, as the mean of max/mean over many trials."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from heddle.predict.statistics import max_over_mean
from heddle.runs.measuring import Measure, Measuring


def _measure(at: Measuring) -> Mapping[str, float]:
    flows, links, trials, seed = (int(at.options[key]) for key in ("flows", "links", "trials", "seed"))
    draw = np.random.default_rng([seed, at.repeat])
    counts = (np.bincount(draw.integers(links, size=flows), minlength=links) for _ in range(trials))
    found = [value for each in counts if (value := max_over_mean(each)) is not None]
    return {"mmr_mean": float(np.mean(found)), "mmr_p95": float(np.quantile(found, 0.95))}


MEASURE: Final = Measure(
    "Spread random flows over equal links, without a fabric.",
    {"mmr_mean": "mean of max/mean over trials", "mmr_p95": "its 95th percentile"},
    _measure,
    {"flows": 1000, "links": 16, "trials": 1000, "seed": 1},
    live=False,
    seconds=0.1,
)
