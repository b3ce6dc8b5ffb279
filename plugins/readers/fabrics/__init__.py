"""Fabrics in the formats of other tools: files that are read, and files that are written."""
