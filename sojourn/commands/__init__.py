"""The commands, a file for each or for a few that belong together; `sojourn.cli.COMMANDS` names them.

A command is a function whose annotated parameters are its arguments and options, for typer, and whose docstring is its
help. What it works with is imported inside it, so that `sojourn --help` stays quick: at the top of a file only typer,
rich, `sojourn.commands.arguments` and `failures`, `sojourn.errors`, `sojourn.terminal.clean` and `output`.
"""
