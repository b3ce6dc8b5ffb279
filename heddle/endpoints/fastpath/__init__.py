"""The fast path: NICs of a worker as one compiled loop (C), loaded with ctypes. Python's own NICs are the reference."""
