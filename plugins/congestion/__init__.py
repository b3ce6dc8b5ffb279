"""Congestion controls beside those of the core."""
