"""Diagnosis: from a run to a cause, with the evidence for it and what it ruled out."""
