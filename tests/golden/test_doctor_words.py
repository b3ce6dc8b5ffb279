"""Rows of doctor that offer the VM, word for word: kernels without a feature, and soft-RoCE."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from heddle.base.process import Done
from heddle.endpoints.rdma.verbscheck import rxe_check, verbs_check
from heddle.host import doctor, packages
from heddle.host.doctor import Check, Report
from heddle.kernel import rdma

Golden = Callable[[str, str], None]

# What tc and the probes say on kernels without a feature (heddle/host/preflight.py).
NO_QDISC: Final = "Error: Specified qdisc kind is unknown."
NO_SYSCTL: Final = "this kernel has no /proc/sys/net/ipv4/fib_multipath_"
REFUSED: Final[Mapping[str, str]] = {
    "hash policy": f"{NO_SYSCTL}hash_fields",
    "hash seed": f"{NO_SYSCTL}hash_seed",
    "veth": "Error: Unknown device type.",
    **dict.fromkeys(("bfifo", "tbf", "clsact", "red", "ets", "netem"), NO_QDISC),
}
SHARED: Final = "netns shared copy-on-fork on\n"
NEW: Final = "rxe_ns_init rxe_disassociate_ucontext"  # functions of the module in Linux 7.3
APART: Final = "netns exclusive copy-on-fork on\n"


def rows(*checks: Check) -> str:
    """The rows as doctor prints them, without the verdict on this machine."""
    return Report(checks).table()


def test_what_a_kernel_lacks(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_probed", lambda: REFUSED)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    found = [doctor.CHECKS[name]() for name in doctor.CHECKS if name in REFUSED]
    assert not any(check.ok for check in found)
    assert all("--on vm" in check.fix for check in found)
    golden("doctor/kernel.log", rows(*found))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that sets what the machine has of soft-RoCE."""

    def has(
        *, command: bool = True, core: str = SHARED, module: bool = True, loaded: bool = True, functions: str = NEW,
        release: str = "7.3.4",
    ) -> None:  # fmt: skip
        texts = Path("/proc/kallsyms")

        def ran(argv: list[str], **_: object) -> Done:
            assert argv[0] == "modprobe" or argv == ["rdma", "system"]
            if argv[0] == "modprobe":
                assert "-n" in argv, "doctor loads no module"
                return Done((), 0 if module else 1, "", "", 0.0)
            return Done((), 0 if core else 1, core, "", 0.0)

        monkeypatch.setattr(rdma, "find_program", lambda name, *_: name if command or name != "rdma" else None)
        monkeypatch.setattr(rdma, "run", ran)
        monkeypatch.setattr(rdma, "_MODULE", Path("/" if loaded and module else "/nowhere"))
        monkeypatch.setattr("platform.release", lambda: release)
        symbols = "".join(f"0 t {name}\t[rdma_rxe]\n" for name in functions.split()).encode()
        real = Path.read_bytes
        monkeypatch.setattr(Path, "read_bytes", lambda path: symbols if path == texts else real(path))

    return has


@pytest.mark.parametrize("loaded", [True, False])
def test_soft_roce_is_judged_by_the_rule_of_runs(
    loaded: bool, machine: Callable[..., None], golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One golden text for both: a module that is not loaded is judged by the kernel's release."""
    cases: dict[str, dict[str, Any]] = {
        "all there": {},
        "devices apart": {"core": APART},
        "no command rdma": {"command": False},
        "no InfiniBand core": {"core": ""},
        "no module": {"module": False},
        "an old kernel": {"functions": "rxe_init", "release": "6.12.117+deb13-amd64"},
        "devices apart, and they do not move": {"core": APART, "functions": "rxe_ns_init", "release": "7.2.12-arch1"},
    }
    said = []
    for title, has in cases.items():
        machine(**{"loaded": loaded, **has})
        check, wrong = rxe_check(), rdma.obstacle(load=False)
        assert check.ok == (wrong is None) == (title in ("all there", "devices apart"))
        said.append(f"{title}\n{rows(check)}\n")
        assert wrong is None or wrong.hint
    golden("doctor/rxe.log", "\n".join(said))


@pytest.mark.parametrize("release", ["7.0.9-arch1", "6.18.0", "5.10", "custom"])
def test_a_module_that_is_not_loaded_is_not_offered_by_kernels_before_7_1(
    release: str, machine: Callable[..., None]
) -> None:
    machine(loaded=False, release=release)
    assert not rxe_check().ok
    for newer in ("7.1.0-rc1", "7.3.4+deb13-amd64", "10.0"):
        machine(loaded=False, release=newer)
        assert rxe_check().ok


def test_libraries_and_programs_of_verbs(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    said = []
    for absent in ((), ("perftest",), packages.VERBS):
        parts = {
            name: replace(packages.PARTS[name], present=partial(bool, name not in absent)) for name in packages.VERBS
        }
        monkeypatch.setattr(packages, "PARTS", {**packages.PARTS, **parts})
        check = verbs_check()
        assert check.ok == (not absent)
        said.append(f"without {', '.join(absent) or 'nothing'}\n{rows(check)}\n")
    golden("doctor/verbs.log", "\n".join(said))
