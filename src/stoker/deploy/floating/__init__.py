"""The model as it was imported: operations on real numbers with torch's axes, without torch. What is quantised."""
