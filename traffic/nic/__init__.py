"""The hosts' NICs: RC queue pairs, and the packet sockets that carry their frames."""
