"""Bringing one's own: labs from containerlab files that Heddle has not rendered."""
