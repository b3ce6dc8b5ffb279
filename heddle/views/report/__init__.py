"""The report of runs: one HTML file. A section is a template and a function, of this folder or of a plugin."""
