"""The recipe of docs/recipes.md for containers of a user: its commands, and what the restart of a container changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest

from heddle.base.problems import InputError
from heddle.host.engine.docker import docker
from heddle.lab.lab import Lab
from heddle.render import dialects
from heddle.runs.store import paths_of
from heddle_plugins.attach.attaching import detach
from tests.netns.live import document, refused
from tests.recipes import followed, script

OWN = {"blue": "heddleblue", "red": "heddlered"}


@pytest.fixture
def lab(tiny: Lab) -> Iterator[Lab]:
    """Beside two containers of a user. Nothing is attached after the test, and they are gone."""
    try:
        for name in OWN.values():
            docker(
                ["run", "--detach", "--name", name, "--network", "none", dialects.image_names()["host"], "sleep", "inf"]
            )
        yield tiny
        with suppress(InputError):
            detach(tiny, [])
    finally:
        docker(["rm", "--force", *OWN.values()], check=False)


def test_containers_of_a_user_are_attached_and_again_after_a_restart(lab: Lab) -> None:
    done = followed(script("Two containers", running=lab.name, **OWN))
    assert done.returncode == 0 and "the paths of 4 flows are proven" in done.stdout, done.stdout
    assert all(each.predicted == each.measured and each.sent.packets for each in paths_of(lab).flows)

    def faults() -> str:
        return " ".join(document("status", lab.name)["labs"][0].get("faults", []))

    assert faults() == ""
    docker(["restart", "--time", "0", OWN["red"]])
    assert "host3:eth1" in faults()
    ping = ["exec", OWN["blue"], "ping", "-c", "1", "-W", "3", "10.0.1.1"]
    assert docker(ping, check=False).code != 0
    document("attach", "host3", "--container", OWN["red"], lab=lab)
    assert docker(ping, check=False).code == 0
    assert faults() == ""
    docker(["stop", "--time", "0", OWN["red"]])
    document("detach", lab=lab)
    assert "does not run" in refused("attach", "host3", "--container", OWN["red"], lab=lab)
