"""The report of runs: one HTML file. A section is a template of templates/report and a function of this folder."""
