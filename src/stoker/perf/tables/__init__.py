"""Published measurements that calibration and the scoreboard stand on: facts with their sources, part of the package.

``published.csv.gz`` holds training throughputs, ``allreduce.csv.gz`` times of NCCL's all-reduce within a server.
:mod:`stoker.perf.tables.compiling` says how they were made from the collected tables.
"""
