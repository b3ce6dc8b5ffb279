"""What a fabric file may say: YAML with lines, pydantic models, errors in words."""
