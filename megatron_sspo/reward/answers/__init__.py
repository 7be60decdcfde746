"""Compares an answer with the gold answer: spelling, numbers, formulas, names, lists, and math-verify for the rest."""
