"""The pytest plugin: fixtures, assertions, claims."""
