"""Receiver-driven admission: a sender sends a message only after a CTS of its receiver."""
