"""This machine: what it can run, what is missing, how much it carries; engine/ for containers."""
