"""The row `vm` of doctor: whether verbs can run with --place vm, how fast, and whether its image is there."""

from __future__ import annotations

from heddle.base.extras import EXTRAS, SSH
from heddle.host import packages
from heddle.host.doctor import Check
from heddle.places.vm.guest import kvm_failure
from heddle.places.vm.hardware import kvm_problem
from heddle.places.vm.image import find_image
from heddle.places.vm.kernels import DEFAULT, KERNELS


def vm_check() -> Check:
    """QEMU and the SSH extra decide; KVM and the image are details. No VM is started."""
    if packages.missing(packages.VM):
        return Check("vm", False, "no QEMU for --place vm", "./inv vm up --yes", required=False)
    if not EXTRAS[SSH].present:
        return Check("vm", False, f"no {EXTRAS[SSH].package} for --place vm", EXTRAS[SSH].hint, required=False)
    found = find_image(KERNELS[DEFAULT])
    image = f"Linux {found.release}" if found else "its image is not made yet: a few minutes, 1 GB"
    slow = kvm_problem() or kvm_failure()
    speed = f"slow, because {slow}" if slow else "with KVM, if it boots a guest here"
    return Check("vm", True, f"a full kernel with --place vm ({image}; {speed})", required=False)
