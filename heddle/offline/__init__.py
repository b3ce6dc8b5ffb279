"""Offline prediction of paths and loads: any fabric file, any collective or traffic matrix, no lab."""
