"""Parts for writing worlds (plain classes as tools, sandboxes, browsers, graders), and the worlds toy, tools, mixed."""
