"""Curricula: which task each group plays."""
