"""What the kernel's maps make of DSCPs, compared with the fabric file: classes, and which ones are never trimmed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from heddle.base.ethernet import DSCPS
from heddle.base.problems import Problem
from heddle.base.tables import some_of
from heddle.spec.queuepolicy import QueuePolicy
from heddle.wire.layout import DSCP_DATA

if TYPE_CHECKING:
    from heddle.switch.queues.cells import LabQueues


def wrong_classes(live: LabQueues, queues: QueuePolicy) -> Iterator[Problem]:
    """A problem for each wrong pair of classes, for the class of packets without a DSCP, and for wrong exemptions."""
    from heddle.switch.queues.cells import class_row

    now, wanted = live.classes(), class_row(queues)
    moved: dict[tuple[int, int], list[str]] = {}
    for dscp, pair in enumerate(zip(now["of_dscp"].tolist(), wanted["of_dscp"].tolist(), strict=True)):
        if pair[0] != pair[1]:
            moved.setdefault(pair, []).append(f"{dscp}{' (data)' * (dscp == DSCP_DATA)}")
    for (here, there), names in moved.items():
        yield Problem("", f"DSCP {some_of(names)}", f"maps to class {here}, not {there}")
    if now["control"] != wanted["control"]:
        yield Problem("", "control", f"is class {now['control']}, not {wanted['control']}")
    wrong = int(now["whole"]) ^ int(wanted["whole"])
    for exempt, what in ((True, "can be trimmed, and should not"), (False, "is never trimmed, and should be")):
        names = [str(dscp) for dscp in range(DSCPS) if wrong >> dscp & 1 and int(now["whole"]) >> dscp & 1 != exempt]
        if names:
            yield Problem("", f"DSCP {some_of(names)}", what)
