"""Paths and loads on paper: any fabric file, any collective or traffic matrix, and no lab."""
