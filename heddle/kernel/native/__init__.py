"""Compiled code: how it is loaded, and the headers that its sources share."""
