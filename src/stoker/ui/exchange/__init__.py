"""How plans of an exchange are shown."""
