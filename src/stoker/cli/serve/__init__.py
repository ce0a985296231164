"""`stoker serve`: models behind the Open Inference Protocol."""
