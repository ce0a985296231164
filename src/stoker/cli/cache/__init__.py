"""`stoker cache`: fill, inspect and serve the data cache; related commands share a module."""
