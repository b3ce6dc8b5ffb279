"""The pytest plugin before any lab is up: loading, markers with mistakes, same-named fixtures, skips, options."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from heddle.fabric.fabricfile import load_fabric
from heddle.host import capacity
from heddle.host.doctor import Check
from heddle_plugins.testing import testsession
from tests.userplace import PLUGIN, ROOT, UserPlace, section

BAD = """
import pytest


@pytest.mark.fabric("tiny", routing={"ecmp": "eecmp"}, rack=3)
def test_a_value_and_a_key(heddle_lab): ...


@pytest.mark.fabric("mine.yml")
def test_a_file(heddle_run): ...


def test_no_marker(heddle_queues): ...


@pytest.mark.fabric("what another plugin means by it", 7)
def test_without_a_lab(): ...
"""


BAD_GROUP = """
import pytest


@pytest.mark.fabric("tinny")
class TestGroup:
    def test_a_name(self, heddle_paths): ...
"""


def test_mistakes_of_markers_are_errors_of_the_collection(tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    place = UserPlace.below(tmp_path, test_bad=BAD, test_group=BAD_GROUP)
    (place.path / "mine.yml").write_text("name: mine\nracks: two\nctsw: 3\n")
    done = place.pytest(*PLUGIN, "-q")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stdout
    text = section(done.stdout, "ERRORS")
    assert str(place.path) not in text, "a file is named as the user would type it"
    golden("testing/bad_markers.txt", text)


def test_a_fixture_of_the_users_with_the_same_name_comes_first_and_what_does_not_fit_is_said(tmp_path: Path) -> None:
    tests = "def test_mine(heddle_lab):\n    assert heddle_lab == 'my own lab'\ndef test_run(heddle_run): ...\n"
    own = "import pytest\n\n\n@pytest.fixture\ndef heddle_lab():\n    return 'my own lab'\n"
    place = UserPlace.below(tmp_path, conftest=own, test_mine=tests)
    done = place.pytest(*PLUGIN, "-q")
    assert done.returncode == 1 and "1 passed, 1 error" in done.stdout, done.stdout
    said = section(done.stdout, "ERRORS")
    assert f"{place.path}/conftest.py:4  heddle_lab replaces the fixture of Heddle, and gives a str" in said
    assert "hint: " in said and "Traceback" not in said and "calls.py" not in said


@pytest.mark.parametrize(
    ("how", "installed"),
    [("both", True), ("option", False), ("conftest", True)],
)
def test_the_plugin_is_loaded_once_however_often_it_is_named(tmp_path: Path, how: str, installed: bool) -> None:
    text = "def test_mine(request):\n    assert request.config.getoption('--heddle-runtime') == 'netns'\n"
    place = UserPlace.below(tmp_path, test_mine=text)
    if how != "option":
        place.write(conftest="pytest_plugins = ['heddle.testing.plugin']\n")
    site = tmp_path / "site"
    if installed:  # with the metadata of a wheel
        meta = site / "heddle_fabric-0.1.0.dist-info"
        meta.mkdir(parents=True)
        (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: heddle-fabric\nVersion: 0.1.0\n")
        lines = (ROOT / "pyproject.toml").read_text().partition("[project.entry-points.pytest11]\n")[2].splitlines()
        entry = next(line for line in lines if line.startswith('"')).replace('"', "")
        (meta / "entry_points.txt").write_text(f"[pytest11]\n{entry}\n")
    words = PLUGIN if how != "conftest" else ()
    done = place.pytest(*words, "-q", python_path=(site,) if installed else ())
    assert done.returncode == 0, done.stdout + done.stderr


def test_loading_the_plugin_imports_nothing_heavy(tmp_path: Path) -> None:
    heavy = ("numpy", "pydantic", "yaml", "scapy", "rich", "jinja2", "heddle.lab", "heddle.fabric", "heddle.host")
    text = f"import sys\ndef test_mine():\n    assert [name for name in {heavy} if name in sys.modules] == []\n"
    done = UserPlace.below(tmp_path, test_mine=text).pytest(*PLUGIN, "-q", "-p", "no:rich")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("--heddle-labs", "0", " 0: at least 1 lab must be up at once"),
        ("--heddle-pcap", "test_mine.py", " took test_mine.py as its directory: write --heddle-pcap=DIR"),
    ],
)
def test_options_that_cannot_be_are_refused(tmp_path: Path, option: str, value: str, why: str) -> None:
    done = UserPlace.below(tmp_path, test_mine="def test_mine(): ...\n").pytest(*PLUGIN, option, value)
    assert done.returncode == 4
    assert option + why in done.stdout + done.stderr and "Traceback" not in done.stderr


@pytest.fixture
def as_user() -> Iterator[UserPlace]:
    """A directory of an ordinary user: the current one, or `nobody` if that is root."""
    before: tuple[str, ...] = ()
    if os.geteuid() == 0:
        # It may read what root may: the checkout and Python can be below /root.
        reads = "+dac_read_search"
        before = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", f"--inh-caps={reads}",
                  f"--ambient-caps={reads}")  # fmt: skip
    parent = Path(tempfile.mkdtemp(dir="/var/tmp"))
    parent.chmod(0o755)
    yield UserPlace.below(parent, before)
    shutil.rmtree(parent)


def test_without_root_a_test_is_skipped_with_the_reason_or_fails_on_demand(as_user: UserPlace) -> None:
    as_user.write(test_mine='import pytest\n\n\n@pytest.mark.fabric("tiny")\ndef test_mine(heddle_lab): ...\n')
    done = as_user.pytest(*PLUGIN, "-q", "-rs")
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("SKIPPED"))
    assert line.startswith("SKIPPED [1] test_mine.py:4: root: network namespaces need root (run pytest as root")
    assert re.search(r": sudo -E '?/[^ ].* -m pytest\)$", line), "sudo's PATH may have another Python first"
    assert not as_user.state.exists()
    done = as_user.pytest(*PLUGIN, "-q", "--heddle-no-skip")
    assert done.returncode == 1
    assert "this machine cannot run the test: root: network namespaces need root" in done.stdout


def test_a_reason_is_doctors_and_only_what_the_test_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = (
        Check("root", False, "not root, and there is no sudo", "run Heddle as root"),
        Check("frr", False, "no zebra and no bgpd", "apt-get install frr"),
        Check("libbpf", True, "libbpf.so.1"),
        Check("ets", False, "sch_ets: not in this kernel", "without it", required=False),
        Check("engine", False, "no engine answers", "./inv setup containerlab", required=False),
        Check("tshark", False, "dissects captures", "apt-get install tshark", required=False),
        Check("memory", False, "952 MB free: about 11 switches", "free some memory"),
    )
    monkeypatch.setattr(testsession, "_checks", lambda: checks)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    plain, ets = (
        load_fabric("tiny", overrides=each).fabric
        for each in ([], ["queues.scheduler=ets", "queues.pfc.enabled=false"])
    )
    frr = "frr: no zebra and no bgpd (apt-get install frr)"
    assert testsession.cannot_run(plain, "netns") == frr
    assert testsession.cannot_run(ets, "netns") == f"{frr}; ets: sch_ets: not in this kernel (without it)"
    assert testsession.cannot_run(plain, "containerlab") == "engine: no engine answers (./inv setup containerlab)"
    # Memory counts by the switches of the fabric.
    monkeypatch.setattr(testsession, "_checks", lambda: ())
    monkeypatch.setattr(testsession, "_refused", lambda *_: [])
    monkeypatch.setattr(capacity, "free_bytes", lambda: 700 << 20)
    assert testsession.cannot_run(load_fabric("tiny").fabric, "netns") == ""
    reason = "memory: 700 MB free, and 12 switches need about 992 MB (free some memory)"
    assert testsession.cannot_run(load_fabric("zone").fabric, "netns") == reason
    monkeypatch.setattr(capacity, "free_bytes", lambda: 1024 << 20)
    assert testsession.cannot_run(load_fabric("dc").fabric, "netns") == "", "what doctor finds enough is enough"
