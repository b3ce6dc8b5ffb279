"""Imported labs: from containerlab files that Heddle has not rendered."""
