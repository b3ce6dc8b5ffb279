"""For locked-down machines: containerlab built with a correction, dockerd started by hand."""
