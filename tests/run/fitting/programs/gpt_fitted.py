"""A small GPT-2 of Hugging Face, whose blocks write to a cache of keys and values. Argument: where to write."""

import json
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel

if __name__ == "__main__":
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=500, n_positions=64, n_embd=96, n_layer=6, n_head=4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    data = TensorDataset(torch.randint(500, (16 * 8, 64)))
    losses: list[float] = []
    for at, (words,) in enumerate(DataLoader(data, batch_size=16, shuffle=True)):
        loss = model(input_ids=words, labels=words).loss / 2
        loss.backward()
        losses.append(loss.item())
        if at % 2:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, sys.argv[1] + ".pt")
    with open(sys.argv[1] + ".json", "w") as file:
        json.dump({"losses": losses}, file)
