"""The models behind published measurements: shapes, what a batch means, and where each of it is said."""
