"""What a NIC does: frames, queue pairs, pacing. Its wire is `wire`, `frames`, `parse` and `socket`."""
