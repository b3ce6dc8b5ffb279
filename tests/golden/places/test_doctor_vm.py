"""The row of doctor about the VM, word for word."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from heddle.base.extras import EXTRAS, SSH, Extra
from heddle.host import packages
from heddle.host.doctor import Check
from heddle_plugins.places.vm import guest
from heddle_plugins.places.vm.image import VmImage
from tests.golden.test_doctor_words import Golden, rows


def test_the_vm(golden: Golden, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    image = VmImage(tmp_path, "backports", "7.3.4+deb13-amd64", 1.0)
    said = []

    def case(
        title: str, *, qemu: bool = True, ssh: bool = True, made: bool = True, kvm: str = "", failed: str = ""
    ) -> Check:
        part = replace(packages.PARTS["qemu"], present=lambda: qemu)
        monkeypatch.setattr(packages, "PARTS", {**packages.PARTS, "qemu": part})
        monkeypatch.setattr(Extra, "present", property(lambda _: ssh))
        monkeypatch.setattr(guest, "find_image", lambda kernel: image if made else None)
        monkeypatch.setattr("heddle_plugins.places.vm.qemu.kvm_problem", lambda: kvm)
        monkeypatch.setattr(guest, "kvm_failure", lambda: failed)
        said.append(f"{title}\n{rows(check := guest.vm_check())}\n")
        assert not check.required
        return check

    assert case("image and KVM").ok
    assert case("no image", made=False).ok
    assert case("no KVM", kvm="/dev/kvm does not exist").ok
    assert case("KVM failed", failed="KVM failed: the guest was not ready within 20 s").ok
    assert not case("no QEMU", qemu=False).ok
    assert not case("no SSH", ssh=False).ok
    assert EXTRAS[SSH].hint in said[-1]
    said[-1] = said[-1].replace(EXTRAS[SSH].hint, "HINT")  # it depends on how Heddle was installed
    golden("doctor/vm.log", "\n".join(said))
