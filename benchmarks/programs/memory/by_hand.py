"""Recurrent layers over words, whose weights the program updates itself; and an evaluation."""

import torch
from torch import nn
from torch.nn import functional

torch.manual_seed(0)
table, layers, head = nn.Embedding(2000, 96), nn.LSTM(96, 128, 2, dropout=0.2), nn.Linear(128, 2000)
model = nn.ModuleList([table, layers, head])
words = torch.randint(2000, (141, 20))
for begin in range(0, 140, 35):
    model.zero_grad()
    found, _ = layers(table(words[begin : begin + 35]))
    scores = head(found).log_softmax(-1)
    loss = functional.nll_loss(scores.flatten(0, 1), words[begin + 1 : begin + 36].flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    for weight in model.parameters():
        weight.data.add_(weight.grad, alpha=-2.0)
    print(loss.item())
model.eval()
with torch.no_grad():
    for begin in range(0, 140, 35):
        found, _ = layers(table(words[begin : begin + 35]))
        print(functional.cross_entropy(head(found).flatten(0, 1), words[begin + 1 : begin + 36].flatten()).item())
