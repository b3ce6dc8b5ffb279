"""The forecast of time as text, at most 100 columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from heddle.base.units import format_size
from heddle.views.forecasttext import seconds_text, wrapped
from heddle_plugins.time.background import Background
from heddle_plugins.time.forecast import JobTime, TimeForecast

_LINKS: Final = 5
_LEAST: Final = 1e-3  # of the time, that counts as saved


def render(result: TimeForecast) -> str:
    """The whole report."""
    parts = [[*_head(result)], [*_jobs(result)], [*_links(result)], [*_gains(result)], [*_notes(result)]]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _head(result: TimeForecast) -> Iterator[str]:
    fabric = result.fabric
    size = f"{len(fabric.switches):,} switches, {len(fabric.nics):,} NICs"
    yield f"forecast of time for {fabric.name}: {size}; {result.mode}"
    if result.packets:
        yield f"{result.flows:,} flows: packets wait in queues, with pauses of PFC; losses and processors take no time"
    else:
        yield f"{result.flows:,} flows share links by max-min fairness; queues, losses and processors take no time"
    k = fabric.policy.k
    yield f"times are emulated, at 1/{k} of the hardware's rates; a transfer of the same bytes takes 1/{k} there"


def _jobs(result: TimeForecast) -> Iterator[str]:
    named = any(job.name for job in result.jobs)
    width = max(4, *(len(job.name) for job in result.jobs)) if named else 0
    head = f"{'job':<{width}}  " if named else ""
    head += f"{'ranks':>7} {'size':>8} {'iteration':>12} {'algbw GB/s':>11} {'busbw GB/s':>11}"
    yield f"{head} {'begins':>10} {'ends':>10}"
    for job in result.jobs:
        for at, row in enumerate(job.sizes):
            name = f"{job.name if at == 0 else '':<{width}}  " if named else ""
            when = _when(job) if at == 0 else f"{'':>10} {'':>10}"
            head = f"{name}{job.ranks:>7,} {format_size(row.size):>8}"
            times = f"{'-':>12} {'-':>11} {'-':>11}"  # of a background job that ended no iteration
            if row.seconds:
                times = f"{seconds_text(row.seconds):>12} {row.algbw:>11.4g} {row.busbw:>11.4g}"
            yield f"{head} {times} {when}".rstrip()


def _when(job: JobTime) -> str:
    end = "background" if job.end_s is None else seconds_text(job.end_s)
    return f"{seconds_text(job.begin_s):>10} {end:>10}"


def _links(result: TimeForecast) -> Iterator[str]:
    wires = result.wires
    rows = [int(at) for at in np.lexsort((-result.full, -result.use))[:_LINKS] if result.use[at] > 0]
    if rows:
        yield f"{'busiest links':<34} {'utilization':>11} {'full':>8}"
        for at in rows:
            name = f"{wires.ports[at]} to {wires.ports[wires.other[at]]}"
            yield f"{name:<34} {result.use[at]:>11.1%} {result.full[at]:>8.1%}"


def _gains(result: TimeForecast) -> Iterator[str]:
    if not result.gains:
        return
    width = max(40, *(len(each.links) for each in result.gains))
    yield f"{'twice as fast':<{width}} {'saves':>8}"
    single = [each for each in result.gains if each.single]
    best = sorted((each for each in single if each.share > _LEAST), key=lambda each: -each.share)[:_LINKS]
    if single and not best:
        which = f"one of the {len(single)} fullest links" if len(single) > 1 else "the fullest link"
        yield f"{which:<{width}} {'nothing':>8}"
    for each in (*best, *(each for each in result.gains if not each.single)):
        yield f"{each.links:<{width}} {f'{each.share:.1%}' if each.share > _LEAST else 'nothing':>8}"


def _notes(result: TimeForecast) -> Iterator[str]:
    for note in result.notes:
        yield from wrapped(note)


def background_text(found: Background) -> str:
    """The faults for a live run of a job without the others."""
    if not found.left:
        return f"no other job uses the links of job {found.job}"
    flags = [f"    --fault {each}" for each in found.faults]
    head = f"beside the others, job {found.job} takes {seconds_text(found.seconds)}, emulated; alone, live, with"
    return "\n".join([head, *(f"{flag} \\" for flag in flags[:-1]), flags[-1]])
