"""Packets by hand, and captured files."""
