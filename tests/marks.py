"""Marks for single values of a parametrized test."""

from __future__ import annotations

from typing import Any

import pytest


def deep(*values: Any) -> Any:
    """Values with which the test goes further into a feature than `./inv test` does."""
    return pytest.param(*values, marks=pytest.mark.deep)


def long(*values: Any) -> Any:
    """Values with which the test repeats what it, or another test, shows with those of the gate."""
    return pytest.param(*values, marks=pytest.mark.long)
