"""A graph on real numbers as an integer graph: scales from observed ranges, weights rounded, operations joined. Pure.

``folding`` joins what becomes one operation, ``grids`` chooses scales and zero points, ``rounding`` rounds weights,
``layout`` keeps track of axes without moving numbers, ``lowering`` writes the graph.
"""
