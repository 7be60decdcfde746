"""Objectives of other papers: gates, factors, and the rows that combine them, with the papers' values as defaults."""
