"""A running fabric: lifecycle, convergence, status, faults, live changes, captures."""
