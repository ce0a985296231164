"""The loader contract: programs written against torch's own loader, run under torch's loader and under stoker's."""
