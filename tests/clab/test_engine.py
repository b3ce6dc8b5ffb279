"""The engine, started and ended by hand, and what is in the images: with the real dockerd, beside the machine's own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from heddle.base.events import Silent
from heddle.base.problems import CheckError, MachineError
from heddle.host.engine import docker, images, setup
from heddle.host.engine.byhand import dockerd as daemon
from heddle.host.engine.docker import docker as ask
from heddle.render import imagenames

pytestmark = pytest.mark.needs("mount", "procps")

CAPABILITIES = [word for name in ("NET_ADMIN", "SYS_ADMIN", "NET_RAW") for word in ("--cap-add", name)]


@dataclass(frozen=True)
class Place:
    """An engine of the test's own: its directory, its data, its socket."""

    run: Path
    data: Path

    @property
    def socket(self) -> Path:
        return self.run / "docker.sock"

    def processes(self) -> list[str]:
        """Command lines of whatever has its directory among its words."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                text = path.read_bytes().decode(errors="replace").replace("\0", " ")
            except OSError:
                continue
            if str(self.run) in text:
                found.append(text)
        return found

    def mounts(self) -> list[str]:
        lines = Path("/proc/mounts").read_text().splitlines()
        return [line for line in lines if str(self.run) in line or str(self.data) in line]


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Everything that belongs to an engine elsewhere, so that the machine's own is not disturbed."""
    made = Place(
        Path(tempfile.mkdtemp(prefix="heddle-e-", dir="/run")),
        Path(tempfile.mkdtemp(prefix="heddle-e-", dir="/var/tmp")),
    )
    config = made.data / "daemon.json"
    config.write_text(json.dumps({"data-root": str(made.data / "docker"), "bip": "172.17.0.1/16"}))
    monkeypatch.setattr(daemon, "PLACE", made.run / "engine")
    monkeypatch.setattr(images, "LOCK", made.run / "engine" / "building")
    monkeypatch.setattr(daemon, "CONFIG", config)
    monkeypatch.setattr(docker, "SOCKET", made.socket)
    try:
        yield made
    finally:
        daemon.stop(force=True)
        shutil.rmtree(made.run)
        shutil.rmtree(made.data)


def test_an_engine_is_started_and_ended_and_leaves_nothing(place: Place) -> None:
    firewall = _firewall()
    assert docker.down()
    daemon.start()
    assert docker.answers()
    known = daemon.record()
    assert known is not None
    assert os.getsid(known.pid) == known.pid, "away from the terminal"
    daemon.start()
    assert daemon.record() == known, "a second start finds it"
    networks = ask(["network", "ls", "--format", "{{.Name}}"]).out.split()
    assert sorted(networks) == ["host", "none"]
    assert _firewall() == firewall
    assert daemon.stop()
    assert not docker.answers()
    assert not daemon.stop(), "twice is as good as once"
    assert place.processes() == []
    assert place.mounts() == []
    assert not place.socket.exists()


def test_setup_starts_a_daemon_by_hand_and_ends_that_one(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker, "SYSTEMD", place.run / "none")
    first = setup._daemon(Silent(), stays=True)
    assert first.done
    assert "--stop" in first.detail
    assert not setup._daemon(Silent(), stays=True).done
    assert setup.stop_engine().done
    assert place.processes() == []
    assert not setup.stop_engine().done


def test_what_a_killed_dockerd_left_is_removed(place: Place) -> None:
    daemon.start()
    known = daemon.record()
    assert known is not None
    pid = _start_sleeper(place)
    os.kill(known.pid, signal.SIGKILL)
    _until(lambda: daemon.record() is None)
    assert any("containerd-shim" in line for line in place.processes()), "it outlives its dockerd"
    assert place.mounts() != []
    assert daemon.stop()
    assert place.processes() == []
    assert place.mounts() == []
    assert daemon._began(pid) is None
    assert not place.socket.exists()
    daemon.start()
    assert docker.answers()


def test_a_test_runs_engine_ends_with_the_last_that_uses_it(place: Place) -> None:
    with daemon.engine_running():
        first = daemon.record()
        with daemon.engine_running():
            assert daemon.record() == first
        assert docker.answers()
    assert not docker.answers()
    assert place.processes() == []
    assert not daemon.PLACE.exists()


def test_an_engine_that_was_running_before_keeps_running_after_a_test_run(place: Place) -> None:
    daemon.start()
    with daemon.engine_running():
        pass
    assert docker.answers()


def test_setup_keeps_the_engine_that_a_test_run_has_started(place: Place) -> None:
    with daemon.engine_running():
        daemon.start()
    assert docker.answers()


def test_a_number_that_another_process_has_by_now_is_left_alone(place: Place) -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        daemon.PLACE.mkdir()
        daemon._write(daemon.DockerdRecord(other.pid, 1, temporary=False))
        assert daemon.record() is None
        daemon.stop(force=True)
        assert other.poll() is None
        other.kill()


def test_a_dockerd_that_cannot_start_says_why(place: Place) -> None:
    daemon.CONFIG.write_text('{"no-such-key": 1}')
    with pytest.raises(MachineError, match="no-such-key"):
        daemon.start()
    assert place.processes() == []
    assert daemon.record() is None


def test_an_engine_in_use_is_not_ended_unasked(place: Place) -> None:
    daemon.start()
    pid = _start_sleeper(place)
    with pytest.raises(CheckError, match="sleeper runs in that engine"):
        daemon.stop()
    assert Path(f"/proc/{pid}").exists()
    assert daemon.stop(force=True)
    assert daemon._began(pid) is None
    assert place.processes() == []
    assert place.mounts() == []


def test_pruning_removes_only_our_own_old_images(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon.start()
    mine = imagenames.image_names()["switch"]
    for name, label in ((mine, "LABEL heddle=switch"), ("heddle/switch:old", "LABEL heddle=old"), ("theirs:1", "")):
        _scratch_image(place, name, label)
    _scratch_image(place, "heddle/switch:used", "LABEL heddle=used")
    ask(["create", "--network", "none", "heddle/switch:used", "/file"])
    assert images.prune() == ["heddle/switch:old"]
    left = ask(["image", "ls", "--format", "{{.Repository}}:{{.Tag}}"]).out.split()
    assert sorted(left) == sorted([mine, "heddle/switch:used", "theirs:1"])
    assert images.prune() == []


def test_a_base_that_is_there_is_used_and_a_failed_build_leaves_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.start()
    _scratch_image(place, imagenames.PUBLIC_BASE, "")
    templates = place.data / "templates"
    templates.mkdir()
    (templates / "node.sh").write_text("")
    for role in imagenames.REPOSITORIES:
        text = "ARG BASE\nFROM ${BASE}\nLABEL heddle=x\nCOPY node.sh /node.sh\n"
        (templates / f"{role}.Dockerfile").write_text(text + ('RUN ["/none"]\n' if role == "host" else ""))
    monkeypatch.setattr(imagenames, "TEMPLATES", templates)
    with pytest.raises(MachineError, match="could not be built") as caught:
        images.ensure_images()
    assert "/none" in str(caught.value)
    assert images.missing() == [imagenames.image_names()["host"]]
    assert ask(["ps", "--all", "--quiet"]).out == ""
    assert ask(["image", "ls", "--filter", "dangling=true", "--quiet"]).out == ""
    (templates / "host.Dockerfile").write_text("ARG BASE\nFROM ${BASE}\nLABEL heddle=x\nCOPY node.sh /node.sh\n")
    assert [each.built for each in images.ensure_images()] == [False, True]


def test_a_disk_that_fills_up_while_building_is_named(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Really full: where this engine keeps its images, 8 MB fit."""
    disk, templates = place.data / "docker", place.data / "templates"
    disk.mkdir()
    templates.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], check=True)
    try:
        daemon.start()
        _scratch_image(place, imagenames.PUBLIC_BASE, "")
        (templates / "node.sh").write_bytes(b"x" * (16 << 20))
        for role in imagenames.REPOSITORIES:
            text = "ARG BASE\nFROM ${BASE}\nLABEL heddle=x\nCOPY node.sh /node.sh\n"
            (templates / f"{role}.Dockerfile").write_text(text)
        monkeypatch.setattr(imagenames, "TEMPLATES", templates)
        with pytest.raises(MachineError, match="is full: the image could not be built") as caught:
            images.ensure_images()
        assert caught.value.problems[0].what == str(disk)
        assert "df -h" in caught.value.problems[0].hint
        assert ask(["image", "ls", "--filter", "dangling=true", "--quiet"]).out == ""
        daemon.stop(force=True)
    finally:
        subprocess.run(["umount", disk], check=False)


def test_ctrl_c_leaves_nothing_of_a_build(engine: None) -> None:
    code = """
import signal, sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)
from heddle.host.engine import images
from heddle.render import imagenames
imagenames.TEMPLATES = Path(sys.argv[1])
imagenames.PUBLIC_BASE = sys.argv[2]
images._build("switch", "heddle/trial:1", sys.argv[2], images.Silent(), None)
"""
    with tempfile.TemporaryDirectory() as name:
        Path(name, "switch.Dockerfile").write_text(
            'ARG BASE\nFROM ${BASE}\nLABEL heddle=trial\nRUN touch /half\nRUN echo "waits"; sleep 600\n'
        )
        argv = [sys.executable, "-c", code, name, imagenames.image_names()["host"]]
        root = Path(images.__file__).parents[3]
        with subprocess.Popen(argv, cwd=root, stderr=subprocess.DEVNULL, start_new_session=True) as proc:
            _until(lambda: "sleep 600" in _commands(), seconds=120)
            os.kill(proc.pid, signal.SIGINT)
            proc.wait(60)
    assert proc.returncode != 0
    _until(lambda: "sleep 600" not in _commands())
    assert not images.present("heddle/trial:1")
    assert ask(["image", "ls", "--all", "--filter", "label=heddle=trial", "--quiet"]).out == ""


def test_images_are_built_once(engine: None) -> None:
    found = images.ensure_images()
    assert [each.built for each in found] == [False, False]
    assert {each.role: each.name for each in found} == dict(imagenames.image_names())
    assert all(20e6 < each.bytes < 400e6 for each in found)


@pytest.mark.parametrize("role", ["switch", "host"])
def test_a_node_has_no_way_out_but_its_fabric(engine: None, role: str) -> None:
    image, network = imagenames.image_names()[role], f"heddle-trial-{os.getpid()}"
    ask(["network", "create", "--subnet", "192.168.213.0/29", network])
    try:
        name = ask(["run", "--detach", *CAPABILITIES, "--network", network, image]).out.strip()
        try:
            _until(lambda: "sleep infinity" in ask(["top", name]).out)
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


@pytest.mark.parametrize("network", ["none", "host"])
def test_without_rights_or_network_a_node_still_runs(engine: None, network: str) -> None:
    """On the machine's own network it has no right to touch the routes, and must not."""
    routes = subprocess.run(["ip", "route"], capture_output=True, check=True).stdout
    image = imagenames.image_names()["host"]
    assert ask(["run", "--rm", "--network", network, image, "echo", "well"]).out == "well\n"
    assert subprocess.run(["ip", "route"], capture_output=True, check=True).stdout == routes


def test_a_switch_has_what_frr_needs_with_three_capabilities_and_no_more(engine: None) -> None:
    image = imagenames.image_names()["switch"]
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


def test_half_an_answer_is_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket that accepts connections but never answers is reported within a time limit."""
    import socket

    with tempfile.TemporaryDirectory() as name, socket.socket(socket.AF_UNIX) as door:
        path = Path(name, "docker.sock")
        door.bind(str(path))
        door.listen()
        monkeypatch.setattr(docker, "SOCKET", path)
        monkeypatch.setattr(docker, "_ANSWER_S", 1.0)
        wrong = docker.trouble()
        assert wrong is not None
        assert "did not answer" in wrong.why
        assert not docker.down()


def test_a_failed_command_is_reported_with_the_engines_message(engine: None) -> None:
    with pytest.raises(MachineError, match=r"docker inspect failed .*no-such-thing"):
        ask(["inspect", "no-such-thing"])


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
    argv = [
        "run",
        "--detach",
        "--stop-timeout",
        "1",
        "--network",
        "none",
        *files,
        "--name",
        "sleeper",
        "sleeper:1",
        "/usr/bin/sleep",
        "300",
    ]
    ask(argv)
    return int(ask(["inspect", "--format", "{{.State.Pid}}", "sleeper"]).out)


def _firewall() -> str:
    if shutil.which("iptables-save") is None:
        return ""
    done = subprocess.run(["iptables-save"], capture_output=True, text=True, check=False)
    return "\n".join(line for line in done.stdout.splitlines() if not line.startswith("#"))


def _commands() -> str:
    done = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return "\n".join(line for line in done.stdout.splitlines() if line.startswith("sleep"))


def _until(condition: object, seconds: float = 30.0) -> None:
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not come to pass"
        time.sleep(0.1)
