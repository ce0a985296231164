"""Sentences padded to the longest of their batch: several shapes, masks and positions made in the loop."""

import torch
from data import BATCH, options
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset


class Sentences(Dataset):
    def __len__(self):
        return 90 * BATCH + 1  # a last batch of one

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        length = 5 + int(torch.randint(0, 3, (), generator=generator)) - index // BATCH % 2
        return torch.randint(1, 30, (length,), generator=generator), index % 3


def collate(samples):
    tokens, labels = zip(*samples, strict=True)
    return pad_sequence(tokens, batch_first=True), torch.tensor(labels), torch.tensor([len(part) for part in tokens])


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(30, 8), nn.Embedding(10, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.out = nn.Linear(8, 3)

    def forward(self, tokens, mask):
        places = mask.long().cumsum(1) * mask
        hidden = self.words(tokens) + self.places(places)
        hidden, _ = self.attention(hidden, hidden, hidden, key_padding_mask=~mask)
        weights = mask.unsqueeze(-1).float()
        return self.out((hidden * weights).sum(1) / weights.sum(1).clamp(min=1))


def main():
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for tokens, labels, lengths in DataLoader(Sentences(), **options(shuffle=False, collate_fn=collate)):
        mask = torch.arange(tokens.size(1))[None, :] < lengths[:, None]
        loss = functional.cross_entropy(model(tokens, mask), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(tuple(tokens.shape), repr(loss.item()))
