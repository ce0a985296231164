"""Which steps of a thread are observed, and the torch modes that observe them."""
