"""Ports of a fabric for devices of users, and runs of what these send: `attach`, `detach`, `record`."""
