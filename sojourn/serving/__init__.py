"""Serves a model over HTTP: finds and opens it, bounds what the server keeps, counts what it does, and ends it."""
