"""The engine, started and ended by hand, and what is in the images: with the real dockerd, beside the machine's own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import dockerd as daemon
import pytest

from heddle.base.events import Silent
from heddle.base.problems import CheckError, MachineError
from heddle.base.process import start_of
from heddle.host.engine import docker, images, setup
from heddle.host.engine.docker import docker as ask
from heddle.render import dialects
from tests.machine import child, until

pytestmark = pytest.mark.needs("mount", "procps")

CAPABILITIES = [word for name in ("NET_ADMIN", "SYS_ADMIN", "NET_RAW") for word in ("--cap-add", name)]


@dataclass(frozen=True)
class Place:
    """An engine of the test's own: its directory, with its socket, and its data."""

    run: Path
    data: Path

    def left(self) -> list[str]:
        """What is there of it: its socket, mounts, and command lines with its directory among their words."""
        found = [str(docker.SOCKET)] if docker.SOCKET.exists() else []
        for path in (*Path("/proc").glob("[0-9]*/cmdline"), Path("/proc/mounts")):
            with suppress(OSError):
                lines = path.read_bytes().decode(errors="replace").replace("\0", " ").splitlines()
                found += [line for line in lines if str(self.run) in line or str(self.data) in line]
        return found


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Everything that belongs to an engine elsewhere, so that the machine's own is not disturbed."""
    made = Place(*(Path(tempfile.mkdtemp(prefix="heddle-e-", dir=parent)) for parent in ("/run", "/var/tmp")))
    config = made.data / "daemon.json"
    config.write_text(json.dumps({"data-root": str(made.data / "docker"), "bip": "172.17.0.1/16"}))
    monkeypatch.setattr(daemon, "PLACE", made.run / "engine")
    monkeypatch.setattr(images, "LOCK", made.run / "engine" / "building")
    monkeypatch.setattr(daemon, "CONFIG", config)
    monkeypatch.setattr(docker, "SOCKET", made.run / "docker.sock")
    try:
        yield made
    finally:
        daemon.stop(force=True)
        shutil.rmtree(made.run)
        shutil.rmtree(made.data)


def test_an_engine_by_hand_starts_once_and_leaves_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker, "SYSTEMD", place.run / "none")
    firewall = _firewall()
    with setup.engine_running(Silent()):
        known = daemon.record()
        assert known is not None
        assert known.temporary
        assert os.getsid(known.pid) == known.pid, "away from the terminal"
        with setup.engine_running(Silent()):
            assert daemon.record() == known
        assert not setup._daemon(Silent(), stays=False).done
        assert sorted(ask(["network", "ls", "--format", "{{.Name}}"]).out.split()) == ["host", "none"]
    assert not docker.answers(), "it ends with the last test run that uses it"
    assert not daemon.PLACE.exists()
    first = setup._daemon(Silent(), stays=True)
    assert first.done
    assert "--stop" in first.detail
    with setup.engine_running(Silent()):
        assert not setup._daemon(Silent(), stays=True).done
    assert docker.answers(), "a test run does not end an engine that ran before"
    assert _firewall() == firewall
    # What a killed dockerd leaves is removed, and its containers are no secret.
    known, pid = daemon.record(), _start_sleeper(place)
    assert known is not None
    with pytest.raises(CheckError, match="sleeper runs in that engine"):
        setup.stop_engine()
    assert Path(f"/proc/{pid}").exists()
    os.kill(known.pid, signal.SIGKILL)
    until(lambda: daemon.record() is None)
    assert any("containerd-shim" in line for line in place.left()), "it outlives its dockerd"
    assert setup.stop_engine().done
    assert not setup.stop_engine().done, "twice is as good as once"
    assert place.left() == []
    assert start_of(pid) is None
    # One that cannot start says why, and another process with the pid of a record is left alone.
    daemon.CONFIG.write_text('{"no-such-key": 1}')
    with pytest.raises(MachineError, match="no-such-key"):
        daemon.start()
    assert place.left() == []
    with child(["sleep", "60"]) as other:
        daemon._write(daemon.DockerdRecord(other.pid, 1, temporary=False))
        assert daemon.record() is None
        daemon.stop(force=True)
        assert other.poll() is None
        other.kill()


def test_images_are_built_from_the_base_that_is_there_and_old_ones_are_pruned(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a disk of 8 MB, which one of the builds fills."""
    disk, templates = place.data / "docker", place.data / "templates"
    disk.mkdir()
    templates.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], check=True)
    try:
        daemon.start()
        _scratch_image(place, dialects.PUBLIC_BASE, "")
        monkeypatch.setattr(dialects, "TEMPLATES", templates)
        text = "ARG BASE\nFROM ${BASE}\nLABEL heddle=x\nCOPY node.sh /node.sh\n"
        (templates / "node.sh").write_text("")
        (templates / "switch.Dockerfile").write_text(text)
        (templates / "host.Dockerfile").write_text(text + 'RUN ["/none"]\n')
        with pytest.raises(MachineError, match=r"could not be built(?s:.*)/none"):
            images.ensure_images()
        assert images.missing() == [dialects.image_names()["host"]]
        _nothing_unfinished()
        (templates / "host.Dockerfile").write_text(text)
        assert [each.built for each in images.ensure_images()] == [False, True]

        for name, label in (("heddle/switch:old", "LABEL heddle=old"), ("heddle/switch:used", "LABEL heddle=used")):
            _scratch_image(place, name, label)
        ask(["create", "--network", "none", "heddle/switch:used", "/file"])
        assert images.prune() == ["heddle/switch:old"]
        assert images.prune() == []
        assert images.missing() == []
        assert images.present("heddle/switch:used")
        assert images.present(dialects.PUBLIC_BASE)

        ask(["container", "prune", "--force"])
        (templates / "node.sh").write_bytes(b"x" * (16 << 20))
        with pytest.raises(MachineError, match=r"is full: the image could not be built(?s:.*)df -h") as caught:
            images.ensure_images()
        assert caught.value.problems[0].what == str(disk)
        _nothing_unfinished()
        daemon.stop(force=True)
    finally:
        subprocess.run(["umount", disk], check=False)


def _nothing_unfinished() -> None:
    assert ask(["ps", "--all", "--quiet"]).out == ""
    assert ask(["image", "ls", "--filter", "dangling=true", "--quiet"]).out == ""


def test_ctrl_c_leaves_nothing_of_a_build(engine: None) -> None:
    code = """
import signal, sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)
from heddle.host.engine import images
from heddle.render import dialects
dialects.TEMPLATES = Path(sys.argv[1])
dialects.PUBLIC_BASE = sys.argv[2]
images._build("switch", "heddle/trial:1", sys.argv[2], images.Silent(), None)
"""
    with tempfile.TemporaryDirectory() as name:
        Path(name, "switch.Dockerfile").write_text(
            'ARG BASE\nFROM ${BASE}\nLABEL heddle=trial\nRUN touch /half\nRUN echo "waits"; sleep 600\n'
        )
        argv = [sys.executable, "-c", code, name, dialects.image_names()["host"]]
        root = Path(images.__file__).parents[3]
        with child(argv, cwd=root, stderr=subprocess.DEVNULL, start_new_session=True) as proc:
            until(lambda: "sleep 600" in _commands(), seconds=120)
            os.kill(proc.pid, signal.SIGINT)
            proc.wait(60)
    assert proc.returncode != 0
    until(lambda: "sleep 600" not in _commands())
    assert not images.present("heddle/trial:1")
    assert ask(["image", "ls", "--all", "--filter", "label=heddle=trial", "--quiet"]).out == ""


@pytest.mark.parametrize("role", ["switch", "host"])
def test_a_node_has_no_way_out_but_its_fabric_and_also_runs_without_rights_or_network(engine: None, role: str) -> None:
    image, network = dialects.image_names()[role], f"heddle-trial-{os.getpid()}"
    routes = subprocess.run(["ip", "route"], capture_output=True, check=True).stdout
    for other in ("none", "host"):  # on the machine's own network it has no right to touch the routes, and must not
        assert ask(["run", "--rm", "--network", other, image, "echo", "well"]).out == "well\n"
    assert subprocess.run(["ip", "route"], capture_output=True, check=True).stdout == routes
    ask(["network", "create", "--subnet", "192.168.213.0/29", network])
    try:
        name = ask(["run", "--detach", *CAPABILITIES, "--network", network, image]).out.strip()
        try:
            until(lambda: "sleep infinity" in ask(["top", name]).out)
            assert "default" not in ask(["exec", name, "ip", "route"]).out
            assert "192.168.213.0/29" in ask(["exec", name, "ip", "route"]).out
            assert ask(["exec", name, "ping", "-c", "1", "-W", "1", "192.0.2.1"], check=False).code != 0
            ask(["stop", "--time", "30", name])
            ended = ask(["inspect", "--format", "{{.State.ExitCode}}", name]).out.strip()
            assert ended == str(128 + signal.SIGTERM), "it ends on a signal, and is not killed after 30 s"
        finally:
            ask(["rm", "--force", name], check=False)
    finally:
        ask(["network", "rm", network])


def test_a_switch_has_what_frr_needs_with_three_capabilities_and_no_more(engine: None) -> None:
    image = dialects.image_names()["switch"]
    with pytest.raises(MachineError, match=r"docker inspect failed .*no-such-thing"):
        ask(["inspect", "no-such-thing"])
    script = """
set -e
for tool in sed vtysh ip tc ethtool tcpdump ping ps sysctl tini; do command -v $tool > /dev/null; done
stat -c %U /etc/frr /run/frr /var/log/frr | uniq
ls /var/lib/apt/lists | wc -l
ls /run/frr
PATH=/usr/lib/frr:$PATH
for daemon in mgmtd zebra bgpd; do $daemon -d -P 0 --log file:/var/log/frr/$daemon.log; done
sleep 1
vtysh -d bgpd -c 'show version' | head -n 1
ip route add blackhole 203.0.113.0/24
for _ in 1 2 3 4 5 6 7 8 9; do
  vtysh -d zebra -c 'show ip route' | grep -q 203.0.113.0/24 && echo seen && break
  sleep 1
done
"""
    out = ask(["run", "--rm", "--network", "none", *CAPABILITIES, image, "bash", "-c", script]).out.split("\n")
    assert out[0] == "frr"
    assert out[1] == "0", "package lists are removed"
    assert out[2].startswith("FRRouting"), "nothing was started when it was built"
    assert out[3] == "seen"


def _scratch_image(place: Place, name: str, label: str) -> None:
    """An image of one file: no base, nothing to download."""
    directory = place.data / "scratch"
    directory.mkdir(exist_ok=True)
    (directory / "file").write_text(name)
    (directory / "Dockerfile").write_text(f"FROM scratch\n{label}\nCOPY file /file\n")
    ask(["build", "--quiet", "--tag", name, str(directory)])


def _start_sleeper(place: Place) -> int:
    """A container that lives on this machine's own files; its first process, as this machine numbers it."""
    _scratch_image(place, "sleeper:1", "")
    files = [word for name in ("/usr", "/lib", "/lib64") for word in ("--volume", f"{name}:{name}:ro")]
    options = ["--detach", "--stop-timeout", "1", "--network", "none", "--name", "sleeper"]
    ask(["run", *options, *files, "sleeper:1", "/usr/bin/sleep", "300"])
    return int(ask(["inspect", "--format", "{{.State.Pid}}", "sleeper"]).out)


def _firewall() -> str:
    if shutil.which("iptables-save") is None:
        return ""
    done = subprocess.run(["iptables-save"], capture_output=True, text=True, check=False)
    return "\n".join(line for line in done.stdout.splitlines() if not line.startswith("#"))


def _commands() -> str:
    done = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return "\n".join(line for line in done.stdout.splitlines() if line.startswith("sleep"))
