"""One module a claim: what it must show, against what, and whether it holds on this machine.

``python -m benchmarks.NAME [--quick] [--json]`` runs one, ``python -m benchmarks`` all. What is compared runs in
alternation in one process tree; figures are medians with their spread, claims are ratios of the two.
"""
