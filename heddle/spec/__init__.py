"""The keys of a fabric file: YAML with line numbers, pydantic models, readable errors."""
