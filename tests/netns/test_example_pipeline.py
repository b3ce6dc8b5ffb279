"""The example of a network team's repository, as the team uses it: only `heddle-fabric[test]` is installed, nothing of
the checkout is in reach, and there is no network.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from heddle_plugins.testing.pool import claims
from tests.machine import patience
from tests.wheels import InstalledWheel, install_with

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "fabric-pipeline"
HASH_TEST = "tests/test_paths.py::test_all_uplinks_are_used"
# A network namespace with nothing in it but loopback.
LOOPBACK = 'ip link set lo up; exec "$@"'
OFFLINE = ["unshare", "--net", "sh", "-c", LOOPBACK, "x"]
NOT_KEPT = ("HEDDLE", "PYTHON", "PYTEST", "VIRTUAL_ENV")

pytestmark = pytest.mark.needs("git")


@dataclass(frozen=True)
class Repository:
    """A clone of the example with one commit; `state` has the records of its labs."""

    path: Path
    installed: InstalledWheel

    @property
    def state(self) -> Path:
        return self.path.parent / "state"

    @property
    def fabric(self) -> Path:
        return self.path / "fabrics" / "training.yml"

    def change(self, before: str, after: str) -> None:
        """Edit the fabric file."""
        text = self.fabric.read_text()
        assert before in text
        self.fabric.write_text(text.replace(before, after))

    def job(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run the job of the example's CI."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(NOT_KEPT)}
        path = f"{self.installed.program.parent}:{os.environ['PATH']}"
        mine = {"PATH": path, "HEDDLE_STATE_DIR": str(self.state), "COLUMNS": "100", "TERM": "dumb"}
        argv = [*OFFLINE, str(self.path / "ci" / "fabric-tests"), "-p", "no:cacheprovider", *words]
        done = subprocess.run(
            argv,
            cwd=self.path.parent,
            env=kept | mine | env,
            capture_output=True,
            text=True,
            timeout=patience(280),
            check=False,
        )
        assert [each for each in claims() if each.state_dir == str(self.state)] == [], "a lab is left"
        return done

    def properties(self) -> dict[str, Mapping[str, str]]:
        """Test -> its properties in JUnit XML."""
        cases = ElementTree.parse(self.path / "results" / "fabric.xml").iter("testcase")
        return {
            case.get("name", ""): {each.get("name", ""): each.get("value", "") for each in case.iter("property")}
            for case in cases
        }

    def git(self, *words: str) -> None:
        subprocess.run(["git", "-c", "user.name=team", "-c", "user.email=team@example.org", *words], cwd=self.path,
                       check=True, capture_output=True)  # fmt: skip


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> InstalledWheel:
    return install_with(["test"], wheel, tmp_path_factory.mktemp("with spaces") / "the environment")


@pytest.fixture
def repository(installed: InstalledWheel, tmp_path: Path) -> Repository:
    place = tmp_path / "the team's repository"
    ignored = shutil.ignore_patterns("results", ".base", ".venv", "__pycache__", ".pytest_cache")
    shutil.copytree(EXAMPLE, place, ignore=ignored)
    made = Repository(place, installed)
    made.git("init", "--quiet")
    made.git("add", "--all")
    made.git("commit", "--quiet", "--message", "The fabric as planned")
    return made


@pytest.mark.deep
@pytest.mark.long
def test_it_passes_as_it_is_with_only_the_wheel(repository: Repository) -> None:
    done = repository.job("-W", "error")
    assert done.returncode == 0, done.stdout + done.stderr
    # On a busy machine a test skips bandwidths and pauses; what does not depend on time is checked before.
    other = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED") and "host CPU" not in line]
    assert other == []
    found = repository.properties()
    assert len(found) == 5
    for properties in found.values():
        assert properties["heddle.fabric"] == "fabrics/training.yml"
        assert (properties["heddle.runtime"], properties["heddle.k"]) == ("netns", "20000")
        assert float(properties["heddle.run1.busbw"]) > 0
        assert properties["heddle.run1.wrong"] == properties["heddle.run1.dropped"] == "0"
    one = found["test_all_uplinks_are_used"]
    assert one["heddle.run1.paths_agree"] == "true"
    assert float(one["heddle.run1.mmr"]) <= 1.3
    assert {"heddle.run1.marked", "heddle.run1.pauses", "heddle.run1.reliable"} <= set(one)
    loads = {key.split(".")[3]: int(value) for key, value in one.items() if key.endswith(".bytes")}
    assert set(loads) == {f"rtsw{switch}:eth{port}" for switch in (1, 2) for port in (1, 2, 3, 4)}
    assert all(loads.values())
    assert float(one["heddle.run1.mmr"]) == pytest.approx(max(loads.values()) * 8 / sum(loads.values()), abs=1e-4)
    two = found["test_our_hashing_is_faster_than_a_5_tuple_hash"]
    assert (two["heddle.run1.ecmp"], two["heddle.run2.ecmp"]) == ("e-ecmp", "flow")
    assert float(two["busbw.ratio_to_5_tuple_hash"]) > 0
    assert not list((repository.path / "results").glob("captures/*")), "captures of tests that passed are not kept"
    assert not (repository.path / "results" / "base.xml").exists()
    assert len((repository.path / "results" / "summary.md").read_text().splitlines()) == 2 + 7  # runs of five tests


@pytest.mark.needs("tshark")
@pytest.mark.deep
@pytest.mark.long
def test_a_change_of_the_hash_fails_and_the_summary_has_both(repository: Repository) -> None:
    repository.change("ecmp: e-ecmp", "ecmp: flow")
    done = repository.job(HASH_TEST, BASE="HEAD")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "E   AssertionError: the MMR of bytes is above 1.3" in done.stdout
    assert "E   expected  at most 1.3 (max/mean over 8 uplinks of 2 switches with ranks)" in done.stdout
    assert "E   observed  1.75" in done.stdout
    mine = repository.properties()["test_all_uplinks_are_used"]
    assert (mine["heddle.run1.ecmp"], mine["heddle.run1.mmr"]) == ("flow", "1.75")
    head, _, row = (repository.path / "results" / "summary.md").read_text().splitlines()
    cells = dict(zip(head.split(" | "), row.split(" | "), strict=True))
    assert cells["ECMP"] == "e-ecmp -> flow"
    assert cells["MMR"] == "1.1406 -> 1.75", "a function of the fabric file, on every machine"
    assert cells["state |"] == "passed -> FAILED |"
    (capture,) = (repository.path / "results" / "captures").iterdir()
    assert capture.name == "tests-test_paths.py--test_all_uplinks_are_used.pcapng"
    assert str(capture) in done.stdout
    check_capture(capture, queue_pairs=int(mine["heddle.run1.qps"]))


def check_capture(path: Path, queue_pairs: int) -> None:
    """tshark opens it, names the ports, and finds the queue pairs of a connection behind one source port."""
    fields = ("frame.interface_name", "ip.src", "ip.dst", "udp.srcport", "infiniband.bth.destqp")
    wanted = [word for field in fields for word in ("-e", field)]
    argv = ["tshark", "-n", "-r", str(path), "-Y", "infiniband.bth.opcode <= 11"]  # data
    done = subprocess.run([*argv, "-T", "fields", *wanted], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = {tuple(line.split("\t")) for line in done.stdout.splitlines()}
    assert {row[0] for row in rows} >= {f"rtsw1:eth{port}" for port in range(1, 9)}
    pairs = {row[4] for row in rows if row[1:3] == ("10.0.0.1", "10.0.1.1")}
    assert len(pairs) == queue_pairs
    assert len({row[3] for row in rows}) == 1
