"""Breaks it before users do: processes killed, stopped, starved and forked at every stage, in real runs.

``harness`` starts real programs and looks at processes through ``/proc``; ``serve`` serves loaders inside a test or a
forked child of it; ``data`` holds the datasets. Events are awaited, never slept for.
"""
