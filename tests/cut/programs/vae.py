"""A variational autoencoder on flattened pictures; the pixels are the target as well."""

import torch
from data import options, pictures, update
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader


class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.inward, self.mean, self.log_variance = nn.Linear(64, 16), nn.Linear(16, 3), nn.Linear(16, 3)
        self.outward = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 64), nn.Sigmoid())

    def forward(self, pixels):
        hidden = functional.relu(self.inward(pixels.view(-1, 64)))
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        std = torch.exp(0.5 * log_variance)
        return self.outward(mean + torch.randn_like(std) * std), mean, log_variance


def main():
    model = Vae()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for pixels, _ in DataLoader(pictures(), **options()):
        pixels = pixels.to(torch.float32).div(255)
        made, mean, log_variance = model(pixels)
        likeness = functional.binary_cross_entropy(made, pixels.view(-1, 64), reduction="sum")
        update(likeness - 0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp()), optimizer)
