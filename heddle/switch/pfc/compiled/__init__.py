"""The compiled loop of the PFC agent (C), loaded with ctypes. The agent's Python code is the reference."""
