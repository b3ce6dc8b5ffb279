"""One run: plan + lab -> record, series, results."""
