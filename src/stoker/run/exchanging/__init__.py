"""The exchange of gradients in a run: what measures and acts, joined with what decides by prices."""
