"""Builds and judges the tables that predictions rest on; nothing in the product imports it."""
