"""How plans of an exchange, and what runs made of them, are shown."""
