"""Compiled code of switches (C), loaded with ctypes: the PFC agent's loop, and the reading of counters by row.

The reading of rows has a reference in Python, runs/series.py; that of the loop is tests/pfcreference.py.
"""
