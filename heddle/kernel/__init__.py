"""Interfaces to the Linux kernel: namespaces, netlink, FIBs, libbpf, ring buffers, offloads."""
