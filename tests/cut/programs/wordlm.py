"""A word language model: tokens are shifted, transposed and masked in the loop; the hidden state is carried over."""

import torch
from data import BATCH, STEPS, options
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

LENGTH, WORDS, PAD = 9, 20, 0


class Text(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.tokens = torch.randint(1, WORDS, (STEPS * BATCH, LENGTH), generator=generator)
        self.tokens[::3, -2:] = PAD

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"tokens": self.tokens[index], "name": f"line {index}"}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 8)
        self.lstm = nn.LSTM(8, 8)
        self.out = nn.Linear(8, WORDS)

    def forward(self, tokens, state):
        hidden, state = self.lstm(self.words(tokens), state)
        return self.out(hidden), state


def main():
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    state = (torch.zeros(1, BATCH, 8), torch.zeros(1, BATCH, 8))
    for batch in DataLoader(Text(), **options(shuffle=False)):
        tokens = batch["tokens"]
        inputs = tokens[:, :-1].t().contiguous()
        targets = tokens[:, 1:].t().reshape(-1)
        mask = (targets != PAD).float()
        scale = mask / mask.sum()
        state = tuple(part.detach() for part in state)
        output, state = model(inputs, state)
        each = functional.cross_entropy(output.view(-1, WORDS), targets, reduction="none")
        loss = (each * scale).sum()
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        print(batch["name"][0], repr(loss.item()))
