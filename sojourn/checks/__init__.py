"""Conformance suites: what a component of each role promises, checked on small real objects."""
