"""Pictures and tables of all of the above."""
