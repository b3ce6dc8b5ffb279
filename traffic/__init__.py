"""What the hosts send, and the proof of where it went: plan -> packets -> counters -> verdict."""
