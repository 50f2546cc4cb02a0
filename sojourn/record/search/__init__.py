"""The search over recorded episodes: the query language, its results and the texts that it searches."""
