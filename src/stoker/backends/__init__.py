"""Backends start data workers; ``feed`` defines what the workers do."""
