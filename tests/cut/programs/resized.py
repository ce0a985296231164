"""Results on the batch are resized, as tensors of the program's own may be."""

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.rand(16 * 40, 8))
for number, (x,) in enumerate(DataLoader(data, batch_size=16, num_workers=1)):
    y = torch.log1p(x) * 3
    z = y.flip(0)
    if number >= 20:
        y.resize_(32, 8)[16:] = 1
        torch.cat([x, x], out=z)
    print(number, y.sum().item(), z.sum().item())
