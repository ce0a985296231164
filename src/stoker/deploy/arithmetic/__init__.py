"""The law: what each operation of the graph computes, in NumPy on whole numbers. Other executions equal it."""
