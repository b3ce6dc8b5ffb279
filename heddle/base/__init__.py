"""Ground floor: problems, events, units, processes, state on disk, mounts. Nothing here knows what a fabric is."""
