"""Questions about a fabric and its jobs: traffic engineering, placement of jobs, diagnosis."""
