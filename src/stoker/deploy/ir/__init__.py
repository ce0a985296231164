"""The integer graph: typed values and operations, their shapes, ranges and accumulator widths. No torch, no execution.

``values`` and ``operations`` are the vocabulary, ``graph`` joins them, ``shapes`` and ``bounds`` derive from the
actual weights what each edge can hold, ``checking`` refuses a graph that does not say so.
"""
