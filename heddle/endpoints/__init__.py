"""Endpoints of the traffic: NICs, transports, ranks, and the workers that run them."""
