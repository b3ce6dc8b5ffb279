"""For locked-down machines only: start dockerd, build containerlab. See README.md; only setup.py imports this."""
