"""Heddle's own image: built from Debian's packages by the Containerfile; the main job in it, without --privileged.

The commands are those of docs/install.md.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from heddle.base.process import Done
from heddle.base.version import VERSION
from heddle.host.engine.docker import docker
from heddle.host.engine.images import OWN_BASE, present
from heddle.render.dialects import PUBLIC_BASE

pytestmark = pytest.mark.long
ROOT = Path(__file__).resolve().parents[2]
IMAGE = "heddle-fabric"


def documented(command: str) -> list[str]:
    """The words of a command of docs/install.md, without `docker` and its own first word."""
    text = (ROOT / "docs/install.md").read_text().replace("\\\n", " ")
    (line,) = re.findall(rf"^docker {command} .*$", text, re.MULTILINE)
    return shlex.split(line)[2:]


@pytest.fixture(scope="module")
def image(engine: None) -> Iterator[str]:
    name = f"heddle-test-fabric:{os.getpid()}"
    base = next(each for each in (PUBLIC_BASE, OWN_BASE) if present(each))
    words = [name if word == IMAGE else word for word in documented("build")]
    assert words[-1] == "."
    proxies = [word for each in os.environ if each.lower().endswith("_proxy") for word in ("--build-arg", each)]
    argv = ["build", "--build-arg", f"BASE={base}", *proxies, *words[:-1], str(ROOT)]
    argv[argv.index("Containerfile")] = str(ROOT / "Containerfile")
    docker(argv, timeout=580)
    yield name
    docker(["rmi", "-f", name], check=False)
    docker(["image", "prune", "--force", "--filter", "label=heddle=build"], check=False)


def inside(image: str, *command: str, options: list[str] | None = None) -> Done:
    """Run a command in a container with the options of docs/install.md."""
    words = documented("run") if options is None else options
    assert "--privileged" not in words
    kept = [word for word in words if word not in ("-it", IMAGE)]
    return docker(["run", *kept, image, *command], check=False, timeout=280)


def test_the_main_job_in_a_container(image: str) -> None:
    verbs = ["up tiny", "run --format json", "paths --format json", "validate", "down"]
    script = " && echo ---- && ".join(f"heddle {verb}" for verb in verbs)
    done = inside(image, "sh", "-c", f"{script} && ls -A /run/netns /var/lib/heddle/labs /work")
    assert done.code == 0, done.err
    up, run, paths, _, down = done.out.split("----\n")
    assert up.startswith("tiny ")
    assert {row["wrong"] for row in json.loads(run)["results"]} == {0}
    assert json.loads(paths)["agree"] is True
    assert down == "tiny: removed completely, with 1 stored run\n/run/netns:\n\n/var/lib/heddle/labs:\n\n/work:\n"


def test_the_image_has_one_version_and_no_package_index(image: str) -> None:
    assert inside(image, "heddle", "--version").out == f"Heddle {VERSION}\n"
    doctor = inside(image, "heddle", "doctor", "--format", "json")
    assert doctor.code == 0, doctor.out
    fixes = {check["name"]: check["fix"] for check in json.loads(doctor.out)["checks"]}
    assert fixes["plot"] == "apt-get install python3-matplotlib", "there is no pip"
    assert inside(image, "sh", "-c", "command -v pip pip3 gcc cc clang").out == ""


def test_without_its_capabilities_the_missing_ones_are_named(image: str) -> None:
    done = inside(image, "heddle", "up", "tiny", options=["--rm", "--network", "none"])
    assert done.code == 3
    assert "CAP_NET_ADMIN, CAP_SYS_ADMIN" in done.err
    assert "--cap-add NET_ADMIN --cap-add SYS_ADMIN" in done.err
    assert "Traceback" not in done.err


def test_without_writable_sysctls_the_option_is_named(image: str) -> None:
    options = documented("run")
    at = options.index("systempaths=unconfined")
    assert options.pop(at - 1) == "--security-opt"
    options.remove("systempaths=unconfined")
    up = inside(image, "heddle", "up", "tiny", options=options)
    assert up.code == 3
    assert "/proc/sys is read-only here" in up.err
    assert "--security-opt systempaths=unconfined" in up.err
    doctor = inside(image, "heddle", "doctor", options=options)
    assert doctor.code == 3
    assert "sysctls       MISSING" in doctor.out
    assert "Linux 6.11" not in doctor.out, "this kernel has it"
