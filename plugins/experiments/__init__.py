"""Experiments: runs, what they measure, and whether it is in the band of a claim; changes of fabrics."""
