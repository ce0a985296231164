"""A decoder under bf16 autocast, with clipping and a schedule."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.1, batch_first=True)
model = nn.Sequential(nn.Embedding(1000, 128), nn.TransformerEncoder(layer, 3), nn.Linear(128, 1000))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
data = TensorDataset(torch.randint(1000, (64, 48)))
for (tokens,) in DataLoader(data, batch_size=16):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(tokens[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
