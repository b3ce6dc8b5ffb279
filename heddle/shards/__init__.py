"""The part of Heddle that runs inside a shard: its agent, and commands in its nodes."""
