"""A trained model as integers: one small graph, one arithmetic, several executions that are equal on every output.

``ir`` is the graph, ``arithmetic`` the law of each of its operations in NumPy, ``engines`` executes it, ``importing``
makes it from a module of torch (the only folder that imports torch), ``package`` keeps it in a folder.
"""
