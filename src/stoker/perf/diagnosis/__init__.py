"""A measured step beside a predicted one: its parts, what limits it, and what to do next. Arithmetic, without torch."""
