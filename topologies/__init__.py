"""What the fabric is and where it runs: fabric file -> spec -> fabric -> files -> lab."""
