"""Formats of traces: each from its files to the nodes of each rank, from which graph.py makes parts."""
