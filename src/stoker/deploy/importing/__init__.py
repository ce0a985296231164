"""A module of torch as a graph on real numbers, and the ranges of its values. The only folder here with torch.

``exporting`` captures the module by ``torch.export``, ``matching`` reads the captured graph before any decomposition,
``observing`` runs it on samples, ``loading`` gets both from the user's files.
"""
