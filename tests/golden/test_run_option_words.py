"""The error of each mistake in the options of `./inv run` for transports, congestion control and admission."""

from __future__ import annotations

from heddle.endpoints.runoptions import run_options
from heddle.fabric.fabricfile import load_fabric
from heddle.proof.collect import refusal
from heddle.runs.run import job_plan, plan_run
from tests.answers import Answers

FABRIC = load_fabric("tiny").fabric


def test_wrong_options_are_explained_in_exactly_these_words(answers: Answers) -> None:
    answers(lambda options: plan_run(FABRIC, run_options(**options)))


def test_rows_of_counters_that_are_missing_are_named(answers: Answers) -> None:
    plan = job_plan(FABRIC, run_options(qps=128, transport="srd", entropy=256))
    answers({"rows of counters": str(refusal(FABRIC, plan, holds=1 << 16, spread=False))})
