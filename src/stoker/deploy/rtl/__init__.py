"""Hardware from an integer graph: a dataflow design in SystemVerilog, a unit a layer, with FIFOs deep enough by proof.

``geometry`` and ``folding`` say what a layer's unit does in how many cycles, ``structure`` joins units by streams,
``flow`` counts what waits where, ``generate`` writes the files next to the parametric units of ``units``. Pure but for
that; nothing here runs a tool.
"""
