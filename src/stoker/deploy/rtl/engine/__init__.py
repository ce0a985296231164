"""An engine: one netlist with an array, memories and function units that programs drive, any model that fits.

``shape`` says how large its parts are, ``instructions`` what they do and how that is written, ``compiling`` turns an
integer graph into a program with the images of its memories, ``machine`` executes a program by the instructions' law.
The netlist is in ``units``; ``files`` writes it with a model. Pure but for that.
"""
