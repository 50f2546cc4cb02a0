"""Agents that search before they act: they try actions in copies of their play, and take the best."""
