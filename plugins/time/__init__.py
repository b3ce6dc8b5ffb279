"""How long jobs take: a flow-level forecast beside the emulation."""
