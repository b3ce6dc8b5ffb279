"""Marks for single values of a parametrized test."""

from __future__ import annotations

from typing import Any

import pytest


def deep(*values: Any) -> Any:
    """Values with which the test goes further into a feature than `./inv test` does."""
    return pytest.param(*values, marks=pytest.mark.deep)


def long(*values: Any) -> Any:
    """Values with which the test repeats what a test of the gate shows; the test says which one."""
    return pytest.param(*values, marks=pytest.mark.long)
