"""NICs: frames (`frames`, `parse`), sockets (`packetsocket`), queue pair ends (`qpend`), pacing (`nic`)."""
