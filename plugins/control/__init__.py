"""Other control planes than FRR."""
