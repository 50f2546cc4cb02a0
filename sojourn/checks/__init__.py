"""Public conformance suites: what a component must do to be one."""
