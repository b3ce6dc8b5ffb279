"""NICs: frames (`frames`, `parse`), sockets (`packetsocket`), ends of queue pairs (`qpend`), scheduling (`nic`)."""
