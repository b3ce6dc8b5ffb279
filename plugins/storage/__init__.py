"""Traffic of storage: TCP between hosts, checkpoints and ingest."""
