"""Transports of a NIC, one file each."""
