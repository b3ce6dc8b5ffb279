"""Congestion control: how fast queue pairs send. One file for each controller; controlled.py has the list."""
