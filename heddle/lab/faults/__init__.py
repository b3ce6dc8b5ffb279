"""Faults on purpose: one file for each kind, one line for each in registry.py."""
