"""Every check that `validate` makes."""
