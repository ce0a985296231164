"""Feeds a training process: order, leases, data workers, slots and the iterator that the program sees.

Read in this order: ``program`` (what a data worker runs), ``order`` (the work items), ``state`` (who makes which),
``worker`` (makes them), ``transport`` (how a batch comes back), ``shell`` (the processes of one loader), ``purity``
(which tier a loader may have), ``loader`` (the iterator behind the program's ``for`` loop).
"""
