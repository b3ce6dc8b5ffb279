"""Fabric -> containerlab topology and FRR configuration, in a dialect."""
