"""The models of published measurements: shapes, the meaning of a batch, and the source of each fact."""
