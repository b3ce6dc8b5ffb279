"""Heddle's image as a file: what docker and containerd read of it, and that Heddle runs from its layer."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

from heddle.base.plugins import parts
from heddle.base.version import VERSION
from heddle.host.fabricarchive import SYSTEM, write_docker_archive, write_own_layer

ROOT = Path(__file__).resolve().parents[2]


def test_the_system_is_that_of_the_containerfile() -> None:
    text = (ROOT / "Containerfile").read_text().replace("\\\n", " ")
    (names,) = re.findall(r"--no-install-recommends (frr .*?) \$\{EXTRAS\}", text)
    assert names.split() == list(SYSTEM)


def test_heddle_runs_from_its_layer(tmp_path: Path) -> None:
    layer, root = tmp_path / "own.tar", tmp_path / "a root"
    write_own_layer(layer)
    with tarfile.open(layer) as tar:
        # Debian 12's first Python has no filters.
        tar.extractall(root, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))  # type: ignore[arg-type]
        assert {(each.uid, each.mtime) for each in tar} == {(0, 0)}
    program = root / "usr/local/bin/heddle"
    assert os.access(program, os.X_OK)
    env = {**os.environ, "PYTHONPATH": str(root / "usr/lib/python3/dist-packages")}
    done = subprocess.run(
        [sys.executable, "-P", str(program), "render", "tiny", "--format", "json", "-o", str(tmp_path / "out")],
        capture_output=True, text=True, env=env, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out").is_dir()
    listed = subprocess.run(
        [sys.executable, "-P", str(program), "--list"], capture_output=True, text=True, env=env, check=True
    )
    assert {"up", *parts("verb")} <= {*listed.stdout.split()}
    said = subprocess.run(
        [sys.executable, "-P", str(program), "--version"], capture_output=True, text=True, env=env, check=True
    )
    assert said.stdout == f"Heddle {VERSION}\n"


def test_the_same_files_are_the_same_layer(tmp_path: Path) -> None:
    """So that a node, which knows layers by their digests, has only one of them."""
    layers = [tmp_path / name for name in "ab"]
    for each in layers:
        write_own_layer(each)
    first, second = (hashlib.sha256(each.read_bytes()).digest() for each in layers)
    assert first == second


def test_an_archive_names_its_layers_by_their_digests(tmp_path: Path) -> None:
    layers = [tmp_path / "low", tmp_path / "high"]
    for each in layers:
        with tarfile.open(each, "w") as tar:
            tar.add(__file__, each.name)
    archive = tmp_path / "an image.tar"
    with archive.open("wb") as stream:
        write_docker_archive(stream, "localhost/x:1", layers, {"Cmd": ["sh"]})
    with tarfile.open(archive) as tar:
        content = {each.name: data.read() for each in tar if (data := tar.extractfile(each))}
    (manifest,) = json.loads(content["manifest.json"])
    config = json.loads(content[manifest["Config"]])
    assert manifest["RepoTags"] == ["localhost/x:1"]
    assert manifest["Config"] == f"{hashlib.sha256(content[manifest['Config']]).hexdigest()}.json"
    assert [content[name] for name in manifest["Layers"]] == [each.read_bytes() for each in layers]
    digests = [f"sha256:{hashlib.sha256(each.read_bytes()).hexdigest()}" for each in layers]
    assert config["rootfs"]["diff_ids"] == digests
    assert config["config"] == {"Cmd": ["sh"]}
