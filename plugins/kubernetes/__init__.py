"""Fabrics over a cluster: pods, shards, their calls, tunnels between them, and what a cluster must have."""
