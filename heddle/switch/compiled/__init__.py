"""Compiled code of switches (C), loaded with ctypes: the PFC agent's loop, and the reading of counters by row.

Both have a reference in Python, which is used where there is no object: pfc/agent.py, runs/rowreader.py.
"""
