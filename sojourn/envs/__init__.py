"""What helps to write worlds (tools, sandboxes, browsers, judges), and those that need nothing: toy, tools, mixed."""
