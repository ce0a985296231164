"""Feeding a training process: order, leases, slots, wire, data workers and the iterator that a program sees.

Read in this order: ``order`` (which work items there are), ``leases`` (who makes which), ``program`` (what a data
worker runs), ``worker`` (its loop), ``wire`` and ``slots`` (how a batch comes back), ``crew`` (the processes of one
loader), ``iterator`` (what the program's ``for`` loop drives).
"""
