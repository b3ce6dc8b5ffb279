"""The live page of a lab and its metrics for Prometheus: `./inv dashboard`."""
