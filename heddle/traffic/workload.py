"""A workload: jobs that run on one fabric at the same time or one after the other.

In:  RunOptions of each job, with its ranks and when it starts; a fabric.
Out: Workload, checked; the endpoints of each job. InputError with all errors in them.
A workload file (endpoints/workloadfile.py) and the flags of `./inv run` both become this value. It is the same for live
runs and for predictions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from heddle.base.problems import InputError, Problem, Problems, did_you_mean
from heddle.fabric.model import Fabric
from heddle.fabric.wiring import BACKEND, Port
from heddle.traffic.collectives import file_options
from heddle.traffic.flow import MAX_SEATS, Endpoint
from heddle.traffic.options import RunOptions
from heddle.traffic.placement import endpoint_at, is_order, place

BACKGROUND: Final = 0  # of `repeat`: again and again, until all other jobs have ended
_FLAG: Final = re.compile(r"--([a-z][a-z-]*)( (?!(?:or|and|out)\b)(?=[^\s]))?")


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one job in a workload file, for errors. name: of the job; where: file and line of the job.

    places: of each key, file and line, and its path: `jobs.storage.qps`.
    """

    name: str = ""
    where: str = ""
    places: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def problem(self, key: str, value: object, why: str, hint: str = "") -> Problem:
        """A problem with one of them."""
        where, path = self.places.get(key) or (self.where, f"jobs.{self.name}.{key}" if self.name else key)
        return Problem(where, f"{path}: {value}" if str(value) else path, why, hint)

    def located(self, problem: Problem) -> Problem:
        """A problem that names flags of a run, in the words of the file; others, and those of a run, as they are."""
        if not self.where or problem.where:
            return problem
        why, hint = (_FLAG.sub(_as_key, text) for text in (problem.why, problem.hint))
        flag = _FLAG.match(problem.what)
        if flag is None:
            return replace(problem, where=self.where, why=why, hint=hint)
        value = problem.what[flag.end() :].strip()
        return self.problem(flag[1].replace("-", "_"), _FLAG.sub(_as_key, value), why, hint)

    @contextmanager
    def named(self) -> Iterator[None]:
        """Errors of a with block name the file's keys instead of the flags of a run."""
        try:
            yield
        except InputError as error:
            raise InputError(*map(self.located, error.problems)) from None


def _as_key(flag: re.Match[str]) -> str:
    """`qps: ` of `--qps `, if a value follows."""
    return flag[1].replace("-", "_") + (": " if flag[2] else "")


@dataclass(frozen=True, slots=True)
class Job:
    """One job: what runs on which ranks, and when.

    slots: its NICs, as numbers in the order of its placement; None: the next ones that no earlier job has.
    start_s: wall time after the beginning of the run, or after the end of the job `after`. repeat: how often all its
    sizes are measured, or BACKGROUND. keys: where they are in its file, for errors.
    """

    name: str
    options: RunOptions
    slots: tuple[int, ...] | None = None
    start_s: float = 0.0
    after: str = ""
    repeat: int = 1
    keys: Keys = Keys()

    def problem(self, key: str, value: object, why: str, hint: str = "") -> Problem:
        """A problem with one of its keys."""
        return self.keys.problem(key, value, why, hint)

    def alone(self) -> Job:
        """The same job without the others: it starts at once, and ends by itself."""
        return replace(self, start_s=0.0, after="", repeat=self.repeat or 1)

    @property
    def network(self) -> str:
        """The network of its ranks."""
        return self.options.network

    @property
    def served(self) -> Mapping[str, int]:
        """As of its pattern."""
        return self.options.pattern.served

    @property
    def runs(self) -> tuple[str, str]:
        """What it runs, as key and value: `collective`, `all-reduce`; `matrix`, `shift:4`; `msccl`, a file; `steps`."""
        if self.options.steps:
            return "steps", ""
        files = {"matrix", *file_options()}
        of_files = [(key, str(value)) for key, value in self.options.parameters if key in files]
        return of_files[0] if of_files else ("collective", self.options.collective)

    @property
    def in_background(self) -> bool:
        """Whether it runs until all other jobs have ended."""
        return self.repeat == BACKGROUND


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs that share a fabric. name: of its file; empty for a single job from flags.

    share_nics: jobs may have ranks on the same NICs; each rank then has QP numbers of its own there.
    """

    jobs: tuple[Job, ...]
    name: str = ""
    share_nics: bool = False

    @classmethod
    def of(cls, options: RunOptions) -> Workload:
        """A single job."""
        return cls((Job("", options),))

    def check(self) -> None:
        """InputError for jobs that cannot all start and end."""
        problems = Problems()
        by_name = {job.name: job for job in self.jobs}
        for job in self.jobs:
            if job.after and job.after not in by_name:
                problems.found.append(job.problem("after", job.after, "is not a job", did_you_mean(job.after, by_name)))
            elif job.after and by_name[job.after].in_background:
                why = "never ends by itself: it is in the background"
                problems.found.append(job.problem("after", job.after, why, "wait for another job"))
        for circle in self._circles(by_name):
            first = by_name[circle[0]]
            why = f"makes a circle in which no job can start: {' after '.join([*circle, circle[0]])}"
            problems.found.append(first.problem("after", first.after, why, "let one of them start by itself"))
        if all(job.in_background for job in self.jobs):
            last = self.jobs[-1]
            hint = "give one job a number of repetitions"
            problems.found.append(last.problem("repeat", "background", "is set for every job, so no job ends", hint))
        problems.raise_if_any()

    def _circles(self, by_name: Mapping[str, Job]) -> Iterator[list[str]]:
        done: set[str] = set()
        for job in self.jobs:
            chain: list[str] = []
            name = job.name
            while name in by_name and name not in done and name not in chain:
                chain.append(name)
                name = by_name[name].after
            if name and name in chain:
                yield chain[chain.index(name) :]
            done |= {*chain}

    def endpoints(self, fabric: Fabric) -> tuple[tuple[Endpoint, ...], ...]:
        """The ranks of each job, by rank. InputError for too few NICs, and for NICs of two jobs unless they share.

        Jobs of the front-end share its ports.
        """
        found: list[tuple[Endpoint, ...]] = []
        used: dict[str, list[Job]] = {}  # NIC -> a job for each rank that it has
        problems = Problems()
        for job in self.jobs:
            try:
                ranks = self._ranks(fabric, job, used)
            except InputError as error:
                problems.found += [job.keys.located(each) for each in error.problems]
                continue
            seated = []
            for end in ranks:
                at = used.setdefault(end.nic, [])
                others = [each for each in at if each is not job and each.network == BACKEND]
                if others and not self.share_nics and job.network == BACKEND:
                    why = f"is a NIC of job {others[-1].name}, too"
                    hint = "use other ranks or another placement, or write share_nics: true"
                    problems.found.append(job.problem("ranks", end.nic, why, hint))
                    break
                if len(at) == MAX_SEATS:
                    why, hint = f"has more than {MAX_SEATS} ranks", "spread the ranks over more NICs"
                    problems.found.append(job.problem("ranks", end.nic, why, hint))
                    break
                seated.append(replace(end, seat=len(at)) if at else end)
                at.append(job)
            found.append(tuple(seated))
        problems.raise_if_any()
        shared = {nic for nic, jobs in used.items() if len(jobs) > 1}
        if not shared:
            return tuple(found)
        return tuple(tuple(replace(end, shared=end.nic in shared) for end in ranks) for ranks in found)

    def _ranks(self, fabric: Fabric, job: Job, before: Mapping[str, Sequence[Job]]) -> tuple[Endpoint, ...]:
        """Of one job: those that are placed, then those of the hosts that serve them. before: NICs of earlier jobs."""
        if not job.served or job.network == BACKEND:
            return self._placed(fabric, job, before)
        ranks = self._placed(fabric, job, before, serving=False, least=1)
        servers = _servers(fabric, job)
        return (*ranks, *(endpoint_at(fabric, len(ranks) + at, port) for at, port in enumerate(servers)))

    def _placed(
        self, fabric: Fabric, job: Job, before: Mapping[str, Sequence[Job]], *, serving: bool = True, least: int = 2
    ) -> tuple[Endpoint, ...]:
        """serving, least: as of `place`."""
        o, asked = job.options, job.options.ranks
        placed = partial(
            place, fabric, o.placement, least=least, named=bool(o.steps), network=o.network, serving=serving
        )
        if len(self.jobs) == 1 and job.slots is None:
            return placed(asked)
        shares = self.share_nics or job.network != BACKEND
        used = [] if shares else [nic for nic, jobs in before.items() if any(j.network == BACKEND for j in jobs)]
        every = placed(None, used=used)
        if job.slots is not None:
            if beyond := [slot for slot in job.slots if slot >= len(every)]:
                why = f"is beyond the last of {len(every)} NICs, which are numbered from 0"
                raise InputError(job.problem("ranks", beyond[0], why, "use a larger fabric or fewer ranks"))
            chosen = [every[slot] for slot in job.slots]
        elif is_order(job.options.placement) and (asked or 0) <= len(every) and not shares:
            free = [end for end in every if end.nic not in used]
            wanted = asked or len(free)
            if wanted > len(free) or wanted < 2:
                why = f"needs {max(2, wanted)} NICs, but the jobs before it leave {len(free)} of {len(every)}"
                raise InputError(job.problem("ranks", asked or "all", why, "give the jobs fewer ranks"))
            chosen = free[:wanted]
        else:
            return placed(asked, used=used)
        return tuple(replace(end, rank=rank) for rank, end in enumerate(chosen))


def _servers(fabric: Fabric, job: Job) -> Iterator[Port]:
    """The ports of the hosts that serve a job, in the order of its pattern."""
    for word, many in job.served.items():
        hosts = fabric.servers(word)
        if not hosts or many > len(hosts):
            name = job.options.collective
            why = f"needs {many or 'one'} {word} host{'s' * (many > 1)} or more, but {fabric.name} has {len(hosts)}"
            hint = f"write frontend: {{{word}: {many or 1}}} into the fabric file"
            raise InputError(job.problem("collective", name, why, hint))
        ends = fabric.ends(job.network)
        yield from (ends[host.name][0] for host in hosts[: many or None])
