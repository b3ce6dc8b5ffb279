"""Central traffic engineering, placement of ranks, and diagnosis."""
