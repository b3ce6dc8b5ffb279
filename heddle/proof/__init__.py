"""Where every queue pair went: predicted, asked of the kernel, measured; and whether the three agree."""
