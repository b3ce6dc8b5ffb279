"""The live page of running labs, and their metrics."""
