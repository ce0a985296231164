"""A deep perceptron whose blocks are recomputed by the program itself."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(192), nn.Linear(192, 768), nn.GELU(), nn.Linear(768, 192)) for _ in range(6)
        )
        self.head = nn.Linear(192, 50)

    def forward(self, x):
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return self.head(x)


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4)
data = TensorDataset(torch.randn(1024, 192), torch.randint(50, (1024,)))
for x, y in DataLoader(data, batch_size=256):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
