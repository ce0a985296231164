"""What people see of a run: the live line, the report as text, HTML and JSON. Depends on core alone."""
