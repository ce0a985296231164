"""How a program's memory is shown."""
