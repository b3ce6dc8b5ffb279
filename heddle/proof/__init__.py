"""The path of every queue pair: predicted, kernel lookup, measured; and whether the three agree."""
