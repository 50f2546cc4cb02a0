"""Curricula decide which task each group plays."""
