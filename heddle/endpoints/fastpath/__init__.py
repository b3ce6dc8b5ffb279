"""The fast path: a compiled loop (C) for a worker's NICs, loaded with ctypes. The Python NICs are the reference."""
