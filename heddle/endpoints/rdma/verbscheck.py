"""The rows `rxe` and `verbs` of doctor: whether `--transport rxe` and `launch` can run here, by their own rule."""

from __future__ import annotations

from heddle.host import packages
from heddle.host.doctor import APT, Check
from heddle.kernel import rdma


def rxe_check() -> Check:
    """The kernel's part. No module is loaded for it."""
    wrong = rdma.obstacle(load=False)
    if wrong is not None:
        return Check("rxe", False, f"{wrong.what} {wrong.why}", wrong.hint, required=False)
    return Check("rxe", True, "soft-RoCE devices in namespaces, for --transport rxe and launch", required=False)


def verbs_check() -> Check:
    """The libraries and programs. The VM has all of them."""
    absent = packages.missing(packages.VERBS)
    if not absent:
        return Check("verbs", True, "libibverbs for --transport rxe, perftest for launch", required=False)
    detail = "; ".join(f"no {part.name} ({part.why})" for part in absent)
    names = " ".join(part.packages[0] for part in absent)
    return Check("verbs", False, detail, f"{APT} {names}; --on vm has them", required=False)
