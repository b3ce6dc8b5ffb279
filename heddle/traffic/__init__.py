"""The traffic of the hosts: options, plan, schedule, collectives."""
