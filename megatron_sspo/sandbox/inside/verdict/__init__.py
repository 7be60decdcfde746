"""The tests, rewritten so that every check is recorded, and the verdict on them."""
