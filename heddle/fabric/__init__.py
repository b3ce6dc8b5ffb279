"""The built fabric: nodes, ports, links, next hops, seeds, buffers. shapes/ builds it, one file per shape."""
