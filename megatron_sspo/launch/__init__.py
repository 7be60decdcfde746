"""From a recipe to running processes."""
