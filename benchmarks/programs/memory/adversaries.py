"""A generator and a discriminator, each with its optimizer."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
made = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 784), nn.Tanh())
judge = nn.Sequential(nn.Linear(784, 256), nn.LeakyReLU(0.2), nn.Dropout(0.3), nn.Linear(256, 1))
of_made = torch.optim.Adam(made.parameters(), lr=2e-4)
of_judge = torch.optim.Adam(judge.parameters(), lr=2e-4)
data = TensorDataset(torch.rand(512, 784))
for (images,) in DataLoader(data, batch_size=64):
    ones, zeros = torch.ones(len(images), 1), torch.zeros(len(images), 1)
    drawn = made(torch.randn(len(images), 32))
    of_judge.zero_grad()
    real = functional.binary_cross_entropy_with_logits(judge(images), ones)
    fake = functional.binary_cross_entropy_with_logits(judge(drawn.detach()), zeros)
    (real + fake).backward()
    of_judge.step()
    of_made.zero_grad()
    functional.binary_cross_entropy_with_logits(judge(drawn), ones).backward()
    of_made.step()
