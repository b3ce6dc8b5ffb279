"""What the hosts send: options, plan, schedule, collectives."""
