"""The display of a run: the live line, and the report as text, HTML and JSON. Depends on core alone."""
