"""The interface of what carries a run in place of Heddle's NICs: a part of the hosts' own kernel."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from heddle.endpoints.loops import NicLoop
    from heddle.traffic.plan import Plan


class HostStack:
    """The part of the hosts' own kernel that carries a run in place of Heddle's NICs.

    only_here: why the hosts must be on this machine, not in shards; empty if they need not.
    shared: whether a NIC can have several ranks.
    """

    only_here: ClassVar[str] = ""
    shared: ClassVar[bool] = True

    def require(self) -> None:
        """MachineError when this kernel does not have it."""

    def ready(self, plan: Plan, netns: Mapping[str, Path]) -> AbstractContextManager[None]:
        """Prepare the hosts for a with block. netns: by host."""
        return nullcontext()

    def loop(self, plan: Plan, params: Any) -> NicLoop:
        """The loop that drives it. params: of the transport."""
        raise NotImplementedError
