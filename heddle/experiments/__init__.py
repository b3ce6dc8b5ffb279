"""Experiments: a file of runs and comparisons, repeated, with statistics; published claims are such files."""
