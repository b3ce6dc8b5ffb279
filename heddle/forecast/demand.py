"""A plan on a fabric: where the ranks are, who talks to whom, and how much each QP carries.

In:  Fabric, PaperPlan. Out: Traffic, columns only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from heddle.base.arrays import U32
from heddle.base.problems import InputError, Problem
from heddle.fabric.model import Fabric
from heddle.forecast.columns import Connections, addresses, connect
from heddle.forecast.matrix import check_memory, matrix_of
from heddle.forecast.planfile import PaperPlan
from heddle.forecast.volume import Volume, cutting, of_lengths, of_pattern
from heddle.traffic.collectives import Pattern, find_pattern
from heddle.traffic.communicators import Communicators, communicators_of, describe
from heddle.traffic.endpoint import Endpoint
from heddle.traffic.options import ELEMENT_BYTES, RunOptions
from heddle.traffic.plan import place, smallest_size


@dataclass(frozen=True)
class Traffic:
    """What is sent. address: by rank, as FlowArrays has them; volume: by kind of connection and index of QP.

    split: the communicators in words, where there are several.
    """

    plan: PaperPlan
    endpoints: Sequence[Endpoint]
    address: U32
    connections: Connections
    volume: Volume
    split: str = ""


def traffic_of(fabric: Fabric, plan: PaperPlan) -> Traffic:
    """Place the ranks and open the QPs. InputError when the fabric lacks ranks or hosts, or the machine memory."""
    spec = plan.spec
    endpoints = _placed(fabric, plan)
    cut = cutting(fabric, spec.qps, spec.qp_mode, spec.chunk)
    groups = () if spec.file is not None else _split(fabric, plan, endpoints)
    if spec.matrix is not None:
        matrix = matrix_of(plan, endpoints, groups)
        check_memory(plan, len(endpoints), len(matrix.src), spec.qps)
        lengths, kind = np.unique(matrix.bytes, return_inverse=True)
        volume = of_lengths(lengths, cut)
        src, dst, kinds = matrix.src, matrix.dst, kind.ravel().astype(np.int32)
    else:
        pattern = find_pattern(*spec.pattern)
        communicators = np.array(groups)
        many, size = communicators.shape
        check_memory(plan, len(endpoints), many * pattern.connections(size), spec.qps)
        pairs, kinds, volume = of_pattern(pattern, size, _count(plan, pattern, size), cut)
        src, dst = communicators[:, pairs].reshape(-1, 2).T
        kinds = np.tile(kinds, many)
    connections = connect(endpoints, src, dst, kinds, spec.qps, spec.source_ports)
    return Traffic(plan, endpoints, addresses(endpoints), connections, volume, describe(fabric, endpoints, groups))


def _count(plan: PaperPlan, pattern: Pattern, ranks: int) -> int:
    """Elements of a rank's array that are sent, rounded down as a run does it; InputError when none are left."""
    count = pattern.whole(ranks, plan.spec.size // ELEMENT_BYTES)
    if count == 0:
        why = f"is rounded down to 0 bytes by {pattern.collective} over {ranks} ranks, as in nccl-tests"
        hint = f"use {smallest_size(pattern, ranks)} or more, or fewer ranks"
        raise InputError(Problem(plan.document.where(("size",)), f"size: {plan.spec.size}", why, hint))
    return count


def _placed(fabric: Fabric, plan: PaperPlan) -> tuple[Endpoint, ...]:
    """As a run places ranks; what is wrong is said of the plan's keys instead of a run's flags."""
    try:
        return place(fabric, RunOptions(ranks=plan.spec.ranks, placement=plan.spec.placement))
    except InputError as error:
        raise InputError(*(_in_plan(plan, problem) for problem in error.problems)) from None


def _split(fabric: Fabric, plan: PaperPlan, endpoints: Sequence[Endpoint]) -> Communicators:
    """As a run splits its ranks."""
    try:
        return communicators_of(fabric, endpoints, plan.spec.split)
    except InputError as error:
        raise InputError(*(_in_plan(plan, problem) for problem in error.problems)) from None


def _in_plan(plan: PaperPlan, problem: Problem) -> Problem:
    for key in ("ranks", "placement", "split"):
        flag, value = f"--{key} ", problem.what.removeprefix(f"--{key} ")
        if problem.what.startswith(flag):
            where = plan.document.where((key,))
            return replace(problem, where=where, what=f"{key}: {value}", hint=problem.hint.replace(flag, f"{key}: "))
    return problem
