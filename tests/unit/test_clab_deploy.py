"""What containerlab says when something fails, read into problems. The texts are what 0.79 printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from heddle.base.problems import MachineError
from heddle.runtimes.clab_deploy import raise_failures

BLOCKS = """\
08:51:20 INFO Creating container name=a
08:51:21 ERRO Failed to execute command command="sh -c echo no such \\"thing\\" >&2; echo out; exit 5" node=a rc=5
  stdout=
  │ out

  stderr=
  │ no such thing

08:51:21 ERRO Failed to execute command command="sh /etc/frr/start.sh" node=clab-zone-ctsw2 rc=6
  stdout=
  │ one

  stderr=
  │ two
  │ three

08:51:22 INFO Adding host entries path=/etc/hosts
"""
SILENT = '08:51:21 ERRO Failed to execute command command=false node=a rc=1 stdout="" stderr=""'
PULL = """\
08:51:20 ERRO Failed to pull image image=docker.io/x/y err="no such host"
Error: failed to pull image docker.io/x/y
"""


def failures_of(text: str, code: int) -> list[str]:
    with pytest.raises(MachineError) as caught:
        raise_failures("zone", Path("/x/zone.clab.yml"), code, text.splitlines())
    return [str(problem) for problem in caught.value.problems]


def test_commands_that_fail_are_named_although_containerlab_ends_well() -> None:
    assert failures_of(BLOCKS, 0) == [
        'a  sh -c echo no such "thing" >&2; echo out; exit 5 failed with exit code 5: no such thing; out',
        "ctsw2  sh /etc/frr/start.sh failed with exit code 6: two; three; one",
    ]
    assert failures_of(SILENT, 0) == ["a  false failed with exit code 1: it printed nothing"]


def test_a_failed_deployment_is_reported_with_containerlabs_message_and_a_hint() -> None:
    (said,) = failures_of(PULL, 1)
    assert said.startswith("containerlab deploy of zone failed: Failed to pull image image=docker.io/x/y")
    assert "./inv image" in said


def test_an_error_without_a_line_of_the_log_is_read_out_of_its_box() -> None:
    (said,) = failures_of(
        "09:10:13 INFO Parsing\n\n   ERROR  \n\n  Deployment failed: some reason\n  or other.   \n", 1
    )
    assert said.splitlines()[0] == "containerlab deploy of zone failed: Deployment failed: some reason or other."


def test_unknown_messages_are_passed_on() -> None:
    (said,) = failures_of("something new", 3)
    assert "failed: something new" in said
    assert "--log-level debug" in said
    (said,) = failures_of("", 3)
    assert "it ended with exit code 3" in said


def test_a_deployment_without_a_complaint_is_none() -> None:
    raise_failures("zone", Path("/x"), 0, ["08:51:20 INFO Creating container name=a"])
