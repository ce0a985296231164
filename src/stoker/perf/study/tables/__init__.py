"""Published measurements that calibration and the scoreboard rest on: facts with their sources, part of the package.

``published.csv.gz`` holds training throughputs. :mod:`stoker.perf.study.tables.compiling` says how it was made from the
collected tables.
"""
