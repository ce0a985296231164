"""Evaluation after each epoch, of an average of the weights, with predictions kept."""

import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(100, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 20))
average = copy.deepcopy(model)
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(256, 100), torch.randint(20, (256,)))
test = TensorDataset(torch.randn(2048, 100), torch.randint(20, (2048,)))
for _ in range(2):
    model.train()
    for x, y in DataLoader(data, batch_size=64, shuffle=True):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            for mean, weight in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(weight, 0.1)
    average.eval()
    kept = []
    with torch.no_grad():
        for x, _ in DataLoader(test, batch_size=1024):
            kept.append(average(x).softmax(-1))
    accuracy = (torch.cat(kept).argmax(-1) == test.tensors[1]).float().mean()
