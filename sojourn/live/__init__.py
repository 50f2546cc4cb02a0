"""Agents that learn while they serve: what is kept of people's sessions, and which weights answer them."""
