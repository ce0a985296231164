"""`stoker profile`: measures the steps of a program, from launching it to the file with the results."""
