"""What nodes say to each other: ``frames``, over a ``node_channel`` that begins with a ``handshake``."""
