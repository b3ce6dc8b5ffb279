"""Shapes of HPC networks: fat tree, dragonfly. The keys of a shape are in NAME_spec.py, its builder is in NAME.py."""
