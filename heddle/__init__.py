"""An emulated AI-training fabric: fabric file -> spec -> fabric -> files -> lab -> plan -> packets -> verdict."""
