"""The protocol between nodes: ``frames``, over a ``node_channel`` that begins with a ``handshake``."""
