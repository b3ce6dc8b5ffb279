"""doctor: what is missing is named with its remedy, and nothing makes it stumble. packages: the same, with apt."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from heddle.base.extras import EXTRAS, Extra
from heddle.base.problems import MachineError
from heddle.host import doctor, packages, preflight


def test_every_check_has_a_detail_and_a_place_in_the_table() -> None:
    report = doctor.examine()
    assert [c["name"] for c in report.to_json()["checks"]] == list(doctor.CHECKS)
    assert all(c.detail for c in report.checks)
    assert all(name in report.text() for name in doctor.CHECKS)
    # A check that breaks is called optional by name; the name must not be forgotten when one is added.
    optional = {c.name for c in report.checks if not c.required}
    assert optional == set(doctor._OPTIONAL) if os.geteuid() == 0 else optional >= set(doctor._OPTIONAL)


def test_the_verdict_is_the_first_line_then_comes_what_is_needed_then_what_is_optional() -> None:
    here = doctor.Check("frr", True, "FRR 10")
    more, absent = (
        doctor.Check("tshark", False, "a dissector", "get it", required=False),
        doctor.Check("tc", False, "-"),
    )
    lines = doctor.Report((more, here)).text().splitlines()
    assert lines == [
        "This machine can run fabrics.", "",
        "needed    state  details", "frr       ok     FRR 10", "",
        "optional", "tshark    no     a dissector", "                 -> get it",
    ]  # fmt: skip
    assert doctor.Report((more, absent)).text().startswith("Missing on this machine: tc.\n\nneeded  ")
    assert "optional" not in doctor.Report((here, absent)).text()


def test_a_check_that_raises_fails_and_without_unshare_the_probes_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken() -> doctor.Check:
        raise OSError("no such thing")

    monkeypatch.setattr(doctor, "CHECKS", {"kernel": broken, "docker": broken})
    kernel, docker = doctor.examine().checks
    assert not kernel.ok
    assert kernel.required
    assert "no such thing" in kernel.detail
    assert not docker.required
    assert not doctor.examine().ok
    # Without unshare the probes say so.
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    assert set(preflight.probe().values()) == {"unshare is missing (util-linux)"}


def test_missing_frr_and_extras_have_a_row_with_the_command_that_adds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "FRR_DIRS", (Path("/nowhere"),))
    monkeypatch.setattr(Extra, "present", property(lambda _: False))
    report = doctor.examine()
    rows = {check.name: check for check in report.checks}
    assert not report.ok
    assert rows["frr"].fix == "apt-get install frr"
    assert "MISSING" in report.text()
    for name, extra in EXTRAS.items():
        assert rows[name].detail == f"no {extra.package}, for {extra.serves}"
        assert rows[name].fix == extra.hint
        assert not rows[name].required


@pytest.fixture
def no_frr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "FRR_DIRS", (Path("/nowhere"),))
    monkeypatch.delenv("CI", raising=False)


@pytest.mark.usefixtures("no_frr")
def test_missing_packages_are_named_with_the_command() -> None:
    with pytest.raises(MachineError) as caught:
        packages.ensure(packages.FABRIC)
    assert caught.value.exit_code == 3
    assert "frr is missing" in str(caught.value)
    assert "apt-get install frr" in str(caught.value)


@pytest.mark.usefixtures("no_frr")
def test_without_apt_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(MachineError, match="package manager of this system"):
        packages.ensure(["frr"], yes=True)


@pytest.mark.usefixtures("no_frr")
@pytest.mark.parametrize("how", ["yes", "CI", "asked"])
def test_missing_packages_are_installed_when_allowed(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for apt-get: it refuses once, as on a machine without package lists, then brings FRR."""
    log, frr = tmp_path / "log", tmp_path / "frr"
    script = f"""#!/bin/sh
case "$*" in "-s "*)
    [ "$(grep -c update '{log}')" -gt 0 ] || exit 100
    printf 'NOTE: simulated\nInst libyang2 (2.1)\nInst frr (8.4)\nConf frr (8.4)\n'; exit 0 ;;
esac
echo "$*" >> '{log}'
case "$*" in *update*) exit 0 ;; esac
[ "$(grep -c install '{log}')" -gt 1 ] || exit 100
mkdir -p '{frr}'; for d in zebra bgpd; do printf '#!/bin/sh' > '{frr}'/$d; chmod +x '{frr}'/$d; done
printf '#!/bin/sh' > '{tmp_path}/bin/vtysh'; chmod +x '{tmp_path}/bin/vtysh'
"""
    (tmp_path / "bin").mkdir()
    for name in ("apt-get", "sudo"):
        tool = tmp_path / "bin" / name
        tool.write_text(script if name == "apt-get" else '#!/bin/sh\nexec "$@"\n')
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setattr(packages, "FRR_DIRS", (frr,))
    if how == "CI":
        monkeypatch.setenv("CI", "true")
    said: list[str] = []

    def ask(question: str) -> bool:
        said.append(question)
        return how == "asked"

    packages.ensure(["frr"], yes=how == "yes", ask=ask, say=said.append)
    assert said[:2] == [
        "missing: frr (the switches' control plane: zebra and bgpd)",
        "apt-get would install frr, and all dependencies; they stay installed when labs are down",
    ]
    allowed = {"yes": "--yes allows this without a question", "CI": "CI=true allows this without a question"}
    assert said[2].startswith("frr has a service of its own: it is neither started nor enabled, because ")
    assert said[3] == allowed.get(how, "Install frr now?")
    assert "apt-get would install 2 packages, which stay installed when labs are down: frr, libyang2" in said
    assert [line.split()[-1] for line in log.read_text().splitlines()] == ["frr", "update", "frr"]


def test_packages_of_labs_include_tools_for_hosts_where_apt_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Optional: it never asks for an installation by itself, and an unknown package is left out."""
    gone = {name: replace(part, present=lambda: False) for name, part in packages.PARTS.items()}
    monkeypatch.setattr(packages, "_has", lambda package: package not in {"iperf3", "libbpf1"})
    installed: list[list[str]] = []
    monkeypatch.setattr(packages, "_announced", lambda words: "")
    monkeypatch.setattr(packages, "_sudo", list)
    monkeypatch.setattr(packages, "_install", lambda parts, *_: installed.append(packages._known(parts)))
    monkeypatch.setattr(shutil, "which", lambda *_, **__: "/usr/bin/apt-get")
    tools = {name: gone[name] for name in packages.HOST_TOOLS}
    monkeypatch.setattr(packages, "PARTS", {**{n: replace(p, present=lambda: True) for n, p in gone.items()}, **tools})
    packages.ensure(packages.FABRIC, yes=True)
    assert installed == []
    monkeypatch.setattr(packages, "PARTS", gone)
    packages.ensure(packages.FABRIC, yes=True)
    wanted = "frr iproute2 libbpf0 libdeflate0 util-linux iputils-ping traceroute tcpdump"
    assert installed == [wanted.split()]
    packages.ensure(packages.CAPTURE, yes=True)
    assert " ".join(installed[1]) == "tcpdump util-linux"


@pytest.mark.parametrize("manager", ["systemd", "systemctl alone", "no systemctl"])
def test_a_service_that_comes_with_a_package_neither_starts_nor_stays_enabled(
    manager: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stand-ins for apt-get and what manages services: they write down what is asked of them, in order."""
    log, tools = tmp_path / "log", tmp_path / "bin"
    tools.mkdir()
    systemd = manager == "systemd"
    disabler = "deb-systemd-helper" if manager == "no systemctl" else "systemctl"
    for name in ("apt-get", disabler, "update-rc.d"):
        started = f"[ -x '{tmp_path}/policy' ] && echo nothing may start >> '{log}'\n" if name == "apt-get" else ""
        brings = f"printf '#!/bin/sh' > '{tools}/sshd'; chmod +x '{tools}/sshd'\n" if name == "apt-get" else ""
        script = f"#!/bin/sh\n[ \"$1\" = -s ] && exit 100\n{started}echo {name} $* >> '{log}'\n{brings}"
        (tools / name).write_text(script)
        (tools / name).chmod(0o755)
    (tmp_path / "ssh").write_text("")
    service = replace(packages.SERVICES["openssh-server"], script=str(tmp_path / "ssh"), pid_file=tmp_path / "pid")
    monkeypatch.setattr(packages, "SERVICES", {"openssh-server": service})
    monkeypatch.setattr(packages, "POLICY", tmp_path / "policy")
    monkeypatch.setattr(packages, "SYSTEMD", tmp_path if systemd else tmp_path / "none")
    part = replace(packages.PARTS["openssh-server"], present=(tools / "sshd").exists)
    monkeypatch.setattr(packages, "PARTS", {"openssh-server": part})
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setattr(packages, "find_program", lambda name, *_: shutil.which(name, path=str(tools)))
    packages.ensure(["openssh-server"], yes=True)
    asked = [line for line in log.read_text().splitlines() if not line.startswith("apt-get")]
    units = "ssh.service ssh.socket"
    disabled = [f"{disabler} disable ssh.service", f"{disabler} disable ssh.socket"]
    assert asked == (
        [f"systemctl mask --runtime {units}", f"systemctl unmask --runtime {units}", *disabled]
        if systemd
        else ["nothing may start", *disabled, "update-rc.d ssh disable"]
    )
    assert not (tmp_path / "policy").exists()


def test_probing_leaves_nothing() -> None:
    before = subprocess.run(["cat", "/proc/net/dev", "/proc/mounts"], capture_output=True, check=True).stdout
    preflight.probe()
    after = subprocess.run(["cat", "/proc/net/dev", "/proc/mounts"], capture_output=True, check=True).stdout
    assert b"heddle0" not in after
    assert before.count(b"bpf") == after.count(b"bpf")
