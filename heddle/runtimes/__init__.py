"""Where a rendered topology runs: namespaces of our own, or containerlab."""
