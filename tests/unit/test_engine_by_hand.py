"""The folder `.engine/`: what dockerd is configured with, and containerlab built with one correction by a pinned Go."""

from __future__ import annotations

import json
import os
from pathlib import Path

import clabbuild as build
import dockerd as daemon
import pytest

from heddle.base.events import Silent
from heddle.base.problems import MachineError
from heddle.base.resources import HERE, Installation
from heddle.host.engine import binary, docker, release, setup

MODULE_CACHE = Path(os.environ.get("GOMODCACHE", Path.home() / "go/pkg/mod"))
REAL_SOURCE = MODULE_CACHE / "github.com/srl-labs/containerlab@v0.79.0/utils/kernel_module.go"
SAMPLE = """package utils

func isKernelModuleLoadable(name string) (bool, error) {
\tf, err := os.Open("/proc/modules")
\tif err != nil {
\t\treturn false, err
\t}
\tdefer f.Close()
}

func other() error {
\tf, err := os.Open("/proc/cpuinfo")
\tif err != nil {
\t\treturn err
\t}
}
"""


def test_the_folder_is_for_checkouts_and_pins_the_release_of_setup(tmp_path: Path) -> None:
    folder = HERE.engine_by_hand
    assert folder is not None
    assert Installation(tmp_path / "heddle").engine_by_hand is None
    assert f"{binary.text(binary.RELEASE)}+{binary.MARK}" in (folder / "README.md").read_text()
    release_ = f"{build.PACKAGE} v{binary.text(binary.RELEASE)}"
    text = (build.MODULE / "go.mod").read_text()
    assert f"require {release_}\n" in text
    assert "replace" not in text, "only a copy at build time has one"
    sums = (build.MODULE / "go.sum").read_text().splitlines()
    assert any(line.startswith(f"{release_} h1:") for line in sums)
    assert all(len(line.split()) == 3 and line.split()[2].startswith("h1:") for line in sums)
    assert build.wanted_go(build.MODULE / "go.mod") == (1, 26, 0), "SUMS are of this version"
    assert set(build.SUMS) == {"amd64", "arm64"}


def test_without_the_folder_the_means_of_the_distribution_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (setup, binary, docker):
        monkeypatch.setattr(module, "HERE", Installation(tmp_path / "heddle"))
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr(docker, "SOCKET", tmp_path / "docker.sock")
    monkeypatch.setattr(docker, "SYSTEMD", tmp_path / "systemd")
    monkeypatch.setattr(docker, "find_program", lambda name, *_: f"/bin/{name}")
    with pytest.raises(MachineError, match=r"is not running(?s:.*)service docker start"):
        setup._daemon(Silent(), stays=True)
    assert not setup.stop_engine().done

    def unreachable(*_: object) -> Path:
        raise release.Unreachable("no route")

    monkeypatch.setattr(release, "fetch", unreachable)
    monkeypatch.setattr(binary, "PROC_MODULES", tmp_path)
    with pytest.raises(MachineError, match=r"release is not available: no route(?s:.*)containerlab\.dev/install"):
        setup._obtain(tmp_path, Silent(), None, False, lambda _: False)
    monkeypatch.setattr(binary, "PROC_MODULES", tmp_path / "none")
    with pytest.raises(MachineError, match=r"cannot deploy on this kernel(?s:.*)with module support"):
        setup._obtain(tmp_path, Silent(), None, False, lambda _: False)


def test_settings_of_the_machine_apply_unless_heddle_sets_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "daemon.json"
    monkeypatch.setattr(daemon, "CONFIG", config)
    assert daemon._settings()["iptables"] is False
    config.write_text(
        '{"registry-mirrors": ["https://mirror"], "bridge": "br0", "bip": "10.0.0.1/8", "hosts": ["tcp://x"]}'
    )
    settings = daemon._settings()
    assert settings["registry-mirrors"] == ["https://mirror"]
    assert settings["bridge"] == "none"
    assert settings["hosts"] == [f"unix://{docker.SOCKET}"]
    assert "bip" not in settings
    for text in ("[]", "{"):
        config.write_text(text)
        with pytest.raises(MachineError, match=r"daemon\.json cannot be read"):
            daemon._settings()


def test_the_correction_changes_one_condition_of_an_expected_source() -> None:
    fixed = build.corrected(SAMPLE)
    assert fixed.replace("\t\tif os.IsNotExist(err) {\n\t\t\treturn false, nil\n\t\t}\n", "", 1) == SAMPLE
    assert fixed.index("IsNotExist") < fixed.index("return false, err")
    for source in ("package utils\n", SAMPLE + SAMPLE, SAMPLE.replace("/proc/modules", "/proc/x")):
        with pytest.raises(MachineError, match="is not the expected source"):
            build.corrected(source)
    if REAL_SOURCE.exists():
        source = REAL_SOURCE.read_text()
        assert len(build.corrected(source).splitlines()) == len(source.splitlines()) + 3


@pytest.mark.parametrize(
    ("version", "why"),
    [("go1.17.8", "is go1.17.8"), ("", "of no known version"), (None, "is not inst")],
)
def test_a_go_that_is_missing_or_too_old_is_named(
    version: str | None, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_PLACES", ())
    (tmp_path / "env").symlink_to("/usr/bin/env")
    (tmp_path / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(tmp_path))
    if version is not None:
        (tmp_path / "go").write_text(f"#!/bin/sh\necho {version}\n")
        (tmp_path / "go").chmod(0o755)
    with pytest.raises(MachineError, match=why) as caught:
        build.find_go()
    assert "1.18" in str(caught.value)


def fake_go(at: Path, version: str, answer: str) -> Path:
    """A Go that has one module in its cache, and writes down what it was asked."""
    go = at / "go"
    go.write_text(
        f'#!/bin/sh\necho "$GOTOOLCHAIN $PWD $*" >> {at}/asked\n'
        f'case "$2" in GOVERSION) echo {version};; GOARCH) echo amd64;; download) cat <<END\n{answer}\nEND\n;; esac\n'
    )
    go.chmod(0o755)
    return go


def test_an_old_go_fetches_the_one_that_the_module_asks_for(tmp_path: Path) -> None:
    recent = fake_go(tmp_path, "go1.26.3", "")
    assert build.go_for(build.MODULE / "go.mod", recent, tmp_path) == recent
    cache = tmp_path / "cache"
    for name in ("bin/go", "pkg/tool/linux_amd64/compile", "src/fmt/print.go"):
        (cache / name).parent.mkdir(parents=True, exist_ok=True)
        (cache / name).touch(0o444)
    go = fake_go(tmp_path, "go1.19.8", json.dumps({"Dir": str(cache), "Sum": build.SUMS["amd64"]}))
    assert build.go_for(build.MODULE / "go.mod", go, tmp_path) == cache / "bin/go"
    asked = (tmp_path / "asked").read_text().splitlines()[-1]
    assert asked == f"local {tmp_path} mod download -json golang.org/toolchain@v0.0.1-go1.26.0.linux-amd64"
    modes = {str(p.relative_to(cache)): p.stat().st_mode & 0o777 for p in cache.rglob("*") if p.is_file()}
    assert modes == {"bin/go": 0o555, "pkg/tool/linux_amd64/compile": 0o555, "src/fmt/print.go": 0o444}


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ('{"Dir": "/x", "Sum": "h1:other="}', "checksum h1:other="),
        ('{"Error": "no such host"}', "Go 1.26.0 could not be downloaded"),
    ],
)
def test_a_toolchain_that_is_not_the_pinned_one_is_refused(answer: str, why: str, tmp_path: Path) -> None:
    go = fake_go(tmp_path, "go1.24.4", answer)
    with pytest.raises(MachineError, match=why):
        build.go_for(build.MODULE / "go.mod", go, tmp_path)
