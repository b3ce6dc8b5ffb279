"""Check that every port keeps the order of its packets, for `validate`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from heddle.checks.subject import Found, Subject
from heddle.host import delivery
from heddle.kernel import inorder

_ONLINE: Final = Path("/sys/devices/system/cpu/online")


def order(subject: Subject) -> Found:
    """Every port receives through one queue, with the settings that this kernel supports."""
    wanted = delivery.chosen()
    online = inorder.online_cpus(_ONLINE.read_text(encoding="ascii"))
    faults: list[str] = []
    count = 0
    for node in subject.lab.fabric.nodes:
        found = inorder.read(subject.handles[node.name].netns, [port.name for port in node.ports], wanted.delivery)
        count += len(found)
        faults += [
            f"{node.name}:{port} {why}"
            for port, row in found.items()
            if (why := inorder.fault(row, wanted.delivery, online))
        ]
    return f"{count} ports keep packet order, by {wanted.delivery.settings} ({wanted.reason})", faults
