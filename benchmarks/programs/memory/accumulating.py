"""Gradients of four micro-batches, then a step; losses are kept for the log."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 24, 3, padding=1),
    nn.BatchNorm2d(24),
    nn.ReLU(),
    nn.Conv2d(24, 48, 3, 2, 1),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(4),
    nn.Flatten(),
    nn.Linear(48 * 16, 10),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
data = TensorDataset(torch.randn(128, 3, 32, 32), torch.randint(10, (128,)))
losses = []
for number, (images, labels) in enumerate(DataLoader(data, batch_size=8), start=1):
    loss = nn.functional.cross_entropy(model(images), labels) / 4
    loss.backward()
    losses.append(loss.detach())
    if number % 4 == 0:
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
