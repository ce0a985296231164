"""What builds the tables that predictions stand on, and judges them: nothing of the product imports it."""
