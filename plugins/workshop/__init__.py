"""Workshop units: exercises on a running fabric that check the work."""
