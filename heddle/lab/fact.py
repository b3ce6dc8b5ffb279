"""A fact about a running lab, as a value; facts.py finds them."""

from __future__ import annotations

from dataclasses import dataclass

from heddle.base.problems import Problem, first_lines


@dataclass(frozen=True, slots=True)
class Fact:
    """One fault. kind: a key of FACTS. problem: its node or port, what is wrong there, and the command that repairs it.

    node and port are in `problem.where`, which is empty for what concerns the whole lab.
    """

    kind: str
    problem: Problem

    @property
    def on_purpose(self) -> bool:
        """Whether a user has set it: facts.py, `as_set`."""
        return self.kind == "drained" or any(words in self.problem.why for words in ("on purpose", "for one run"))

    @property
    def text(self) -> str:
        """`rtsw1:eth1  the MTU is 1500, not 4200`."""
        return first_lines([self.problem])[0]
