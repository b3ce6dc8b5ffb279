"""Workshop units: exercises on a running fabric, which check the learner's work."""
