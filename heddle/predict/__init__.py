"""Hashing arithmetic, the walk over FIBs, statistics: exact for live labs and for offline fabrics."""
