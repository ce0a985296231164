"""The `stoker` command: one module a subcommand, imported only when it is chosen."""
