"""The Debian packages of the guest: for labs and tests, soft-RoCE, and a small system that boots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from heddle.host import packages as parts

# The guest runs templates/vm/guest-init and has no init system.
_SYSTEM: Final = ("busybox-static", "ca-certificates", "iproute2", "kmod", "openssh-server", "python3", "python3-venv")
_RDMA: Final = ("ibverbs-providers", "ibverbs-utils", "perftest", "python3-pyverbs", "rdma-core")
_PARTS: Final = (*parts.FABRIC, *parts.HOST_TOOLS, *parts.TEST_EXTRAS)


def guest_packages() -> Sequence[str]:
    """The names of all packages except the kernel, sorted."""
    own = (parts.PARTS[name].packages[0] for name in _PARTS)
    return sorted({*_SYSTEM, *_RDMA, "nftables", *own})
