"""Everything that turns a namespace into a fabric switch: hashing, queues, PFC, counters."""
