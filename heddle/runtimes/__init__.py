"""Runtimes for a rendered topology: plain network namespaces, or containerlab."""
