"""Searches recorded episodes: the query language, its results, and the texts that are indexed."""
