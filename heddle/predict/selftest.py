"""Compare the prediction with the running kernel, once per boot, kernel and version of the arithmetic.

In:  the running kernel, as a test router in a namespace without a name (trial.py).
Out: SelfTest: about a thousand choices of the kernel, over policies, fields, seeds, weights, a dead port, a resilient
     group and both IP versions, compared with the prediction; stored in the state directory.
The kernel's documentation says that its multipath hash may change. If it has changed, Heddle reports it and uses kernel
lookups instead of its prediction.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from heddle.base import state
from heddle.base.arrays import I32, U32
from heddle.base.problems import HeddleError, MachineError
from heddle.fabric.hashmodes import POLICY_CUSTOM, POLICY_L4
from heddle.fabric.policy import FIELDS_5_TUPLE
from heddle.host.doctor import Check
from heddle.predict.flowarrays import FlowArrays
from heddle.predict.forwarding import forwarding_of
from heddle.predict.hashes import POLICY_L3, kernel_hash
from heddle.predict.trial import Trial, some_flows, trial

_FILE: Final = "selftest.json"
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_CODE: Final = ("hashes.py", "flowarrays.py", "forwarding.py", "selftest.py", "trial.py")
_FLOWS: Final = 16  # of one comparison: a different hash agrees by chance in at most 1 of 2^16 cases
_PORTS: Final = 8
_BUCKETS: Final = 32
_WEIGHTS: Final = ((1,) * _PORTS, (1, 2, 3, 10), (5, 5, 5))
_POLICIES: Final = (
    (POLICY_CUSTOM, FIELDS_5_TUPLE), (POLICY_L4, FIELDS_5_TUPLE), (POLICY_L3, FIELDS_5_TUPLE),
    (POLICY_CUSTOM, 0x03), (POLICY_CUSTOM, 0x15), (POLICY_CUSTOM, 0x3F),
)  # fmt: skip
_SEEDS: Final = (1, 99, 3_000_000_000)

Hash = Callable[[FlowArrays, int, int, int], U32]


@dataclass(frozen=True, slots=True)
class SelfTest:
    """The verdict. asked: the number of compared choices. detail: the difference, or why nothing was compared."""

    state: Literal["agrees", "differs", "unchecked"]
    kernel: str
    asked: int = 0
    detail: str = ""

    @property
    def differs(self) -> bool:
        """True when the prediction is wrong on this kernel."""
        return self.state == "differs"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        """One sentence."""
        if self.state == "agrees":
            return f"prediction and kernel {self.kernel} agree on {self.asked} choices"
        if self.state == "differs":
            return f"kernel {self.kernel} chooses differently from the prediction: {self.detail}"
        return f"prediction not compared with kernel {self.kernel}: {self.detail}"


@cache
def verdict(*, keep: bool = True) -> SelfTest:
    """The verdict for this kernel. The first call since boot compares, which takes about a second.

    Without root it is `unchecked`, unless root has compared before. keep: store a new verdict in the state directory.
    """
    stored = _stored()
    if stored is not None:
        return stored
    if os.geteuid() != 0:
        return SelfTest("unchecked", platform.release(), detail="it needs root")
    found = examine()
    if keep and found.state != "unchecked":
        with suppress(HeddleError):  # a full or foreign state directory: the next call compares again
            remember(found)
    return found


def remember(found: SelfTest) -> None:
    """Store a verdict for this boot, kernel and version; MachineError when the state directory cannot be written."""
    state.write_json(state.state_dir() / _FILE, {"key": _key(), "verdict": found.to_json()})


def _stored() -> SelfTest | None:
    try:
        data = json.loads((state.state_dir() / _FILE).read_text())
        return SelfTest(**data["verdict"]) if data["key"] == _key() else None
    except (OSError, ValueError, LookupError, TypeError):
        return None  # no verdict yet, or not one that Heddle wrote: compare again


def _key() -> list[str]:
    return [_boot(), platform.release(), _code()]


def doctor_check() -> Check:
    """For `doctor`: whether this kernel agrees with the prediction. The answer is not stored."""
    found = verdict(keep=False)
    # As root the reason is in the text: a missing program, for example.
    fix = "run sudo ./inv doctor to compare" if found.state == "unchecked" and os.geteuid() != 0 else ""
    return Check("prediction", found.state == "agrees", found.text(), fix, required=False)


def examine(hashed: Hash = kernel_hash) -> SelfTest:
    """Compare now. hashed: the hash function to compare with the kernel."""
    asked = 0
    try:
        with trial(_PORTS) as router:
            for what, flows, expected, answers in _comparisons(router, hashed):
                wrong = int((expected != answers).sum())
                asked += len(flows)
                if wrong:
                    return SelfTest("differs", platform.release(), asked, f"{wrong} of {len(flows)} flows with {what}")
    except (HeddleError, OSError) as error:
        return SelfTest("unchecked", platform.release(), detail=str(error).partition("\n")[0])
    return SelfTest("agrees", platform.release(), asked)


def _comparisons(router: Trial, hashed: Hash) -> Iterator[tuple[str, FlowArrays, I32, I32]]:
    """The comparison in words, the flows, the predicted ports, and the kernel's ports."""
    for version in router.versions:
        for number, weights in enumerate(_WEIGHTS):
            router.route(version, weights)
            seed = _SEEDS[number]
            for policy, fields in _POLICIES:
                router.sysctl(version, policy, fields, seed)
                flows = some_flows(_FLOWS, version, seed ^ policy << 8 ^ fields)
                ports = _ports(weights, hashed(flows, seed, policy, fields))
                what = f"IPv{version}, policy {policy}, fields {fields:#x}, seed {seed}, weights {list(weights)}"
                yield f"{what}, by packets", flows, ports, router.send(flows)
                if (version, policy) != (6, POLICY_CUSTOM):  # RTM_GETROUTE hashes once less there: see oracle.py
                    yield what, flows, ports, router.ask(flows)
        yield from _degraded(router, version, hashed)


def _degraded(router: Trial, version: int, hashed: Hash) -> Iterator[tuple[str, FlowArrays, I32, I32]]:
    """The same with a port that is down, and with a resilient group if the kernel supports it."""
    seed, lost = 7, 2
    router.route(version, (1, 2, 3, 10))
    router.sysctl(version, POLICY_L4, FIELDS_5_TUPLE, seed)
    flows = some_flows(_FLOWS, version, seed)
    value = hashed(flows, seed, POLICY_L4, FIELDS_5_TUPLE)
    router.link(lost, up=False)
    yield f"IPv{version}, a dead next hop", flows, _ports((1, 2, 3, 10), value, dead=lost), router.ask(flows)
    router.link(lost, up=True)
    try:
        homes = router.buckets(version, _BUCKETS, 4)
    except MachineError:
        return  # before Linux 5.13
    yield f"IPv{version}, a resilient group", flows, _ports((1,) * 4, value, homes=homes), router.ask(flows)


def _ports(weights: Sequence[int], value: U32, *, dead: int = -1, homes: Sequence[int] = ()) -> I32:
    """The port that each hash selects among ports of these weights, or among buckets."""
    members = list(homes) or [port for port in range(len(weights)) if port != dead]
    shares = [1] * len(homes) or [weights[port] for port in members]
    table = np.zeros((1, 1), dtype=np.int32)
    names = [f"router:out{i}" for i in range(len(weights))]
    forwarding = forwarding_of(["router"], names, [-1] * len(names), table, [(members, shares, bool(homes))])
    return forwarding.choose(np.zeros(len(value), dtype=np.int32), value >> np.uint32(1))


def _boot() -> str:
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


def _code() -> str:
    """A digest of the arithmetic: a changed version is compared again."""
    digest = hashlib.sha256()
    for name in _CODE:
        digest.update((Path(__file__).parent / name).read_bytes())
    return digest.hexdigest()[:16]
