"""How a switch chooses among equal-cost paths: sysctls, one BPF program, its tables."""
