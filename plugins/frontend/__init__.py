"""The front-end network of a fabric: its nodes and links, and the proof that both networks are separate."""
