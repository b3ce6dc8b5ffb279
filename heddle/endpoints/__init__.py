"""Who sends it: NICs, transports, ranks, and the workers that run them."""
