"""What only locked-down machines need: start dockerd, build containerlab. See README.md; setup.py is the front."""
