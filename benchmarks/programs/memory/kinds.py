"""Any of the models for a CPU, each with its optimizer: `python -m benchmarks.programs.memory.kinds conv`."""

import sys

from benchmarks.programs.cpu_models import OTHERS, SIX

trained = {**SIX, **OTHERS}[sys.argv[1]]()
optimizer = trained.optimizer(trained.module.parameters())
for _ in range(3):
    loss = trained.module(*trained.inputs)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
