"""Priority-based flow control: the agent that sends pause frames and obeys them, and its keeper."""
