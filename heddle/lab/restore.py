"""Undo all live changes of a running lab: hashing, thresholds, faults of links, links that are down, drains."""

from __future__ import annotations

from heddle.lab.faults.orders import end_all
from heddle.lab.impairments import restore_faults
from heddle.lab.lab import Lab
from heddle.lab.outages import SECONDS, undo_all
from heddle.lab.rehash import restore_hashing
from heddle.lab.thresholds import restore_queues


def restore_configured(lab: Lab, seconds: float = SECONDS) -> None:
    """Make a lab as its fabric file describes it. seconds: for routes to come back. CheckError when they do not."""
    restore_hashing(lab)
    restore_queues(lab)
    end_all(lab, seconds)
    restore_faults(lab)
    undo_all(lab, seconds)
