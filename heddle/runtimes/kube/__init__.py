"""Shards of a lab as pods of a Kubernetes cluster: its objects, commands in pods, and the reasons of failures."""
