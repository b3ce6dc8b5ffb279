"""What makes a namespace a fabric switch: hashing, queues, PFC, counters."""
