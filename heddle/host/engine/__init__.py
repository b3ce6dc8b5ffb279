"""What containerlab needs beneath it: the engine, its images, the binary, and how they get here."""
