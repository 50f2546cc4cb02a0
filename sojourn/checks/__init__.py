"""Conformance suites: what an environment, a renderer, an estimator, a loss or a backend promises, checked."""
