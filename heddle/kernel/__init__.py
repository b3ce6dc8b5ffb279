"""Linux as we use it: namespaces, netlink, FIBs, libbpf, ring buffers, offloads."""
