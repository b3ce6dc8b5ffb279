"""Compiled code: what its sources share, and how the committed objects are built. Loading them needs no compiler."""
