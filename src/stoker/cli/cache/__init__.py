"""`stoker cache`: fill, look into, and serve the data cache; one module for commands that belong together."""
