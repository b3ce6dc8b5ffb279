"""Faults of links: loss, corruption and duplicates by the program `dequeue`, delay by the kernel's netem."""
