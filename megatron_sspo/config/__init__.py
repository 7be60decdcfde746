"""The values of a configuration: names and overrides to Python values, checked by their type annotations."""
