"""An integer model as a folder: the same model, the same bytes; damaged ones are refused."""
