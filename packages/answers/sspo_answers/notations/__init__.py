"""Notations of their own, beside those of formulas: names of sets, permutations in cycles, chemical formulas."""
