"""An installed wheel as the source of a checkout on a lab server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from heddle_plugins.places.server import manifest_there, unpack
from tests.wheels import ROOT, install


def test_a_lab_server_gets_a_checkout_from_a_wheel(wheel: Path, tmp_path: Path) -> None:
    """What --on brings over from a wheel is what it brings from this checkout, but for tests."""
    installed = install(wheel, tmp_path / "an environment")
    asked = (
        "import json, sys; from heddle_plugins.places import sync; m = sync.manifest_of(sync.project());"
        "import tarfile; json.dump(m, open('manifest.json', 'w'));"
        "sync.pack(sync.project(), sorted(m), tarfile.open(fileobj=sys.stdout.buffer, mode='w|'))"
    )
    done = subprocess.run([str(installed.python), "-P", "-c", asked], cwd=tmp_path, capture_output=True, check=True)
    manifest: Mapping[str, list[str]] = json.loads((tmp_path / "manifest.json").read_text())
    unpack(done.stdout, tmp_path)
    project = tmp_path / "project"
    assert manifest_there(tmp_path) == manifest
    for name in manifest:
        assert (project / name).read_bytes() == (ROOT / name).read_bytes()
    assert {"inv", "tasks.py", "requirements.lock", "heddle/switch/bpf/hash.o", "topologies/tiny.yml"} <= set(manifest)
    assert {"pyproject.toml", "heddle_plugins/places/vm/guest.py"} <= set(manifest)
    assert not any("_content" in name or "__pycache__" in name for name in manifest)
    (project / ".venv").symlink_to(sys.prefix)
    listed = subprocess.run(
        [sys.executable, str(project / "tasks.py"), "--list"], capture_output=True, text=True, check=False
    )
    assert listed.returncode == 0, listed.stderr
    assert {"up", "vm"} <= {*listed.stdout.split()}, "verbs of the core and of plugins"
