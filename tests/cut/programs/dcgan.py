"""A GAN: two forwards of the discriminator per batch, labels by torch.full, noise on the way."""

import torch
from data import BATCH, options, pictures
from torch import nn
from torch.utils.data import DataLoader

REAL, FAKE = 1.0, 0.0


def main():
    generator = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Unflatten(1, (1, 8, 8)))
    critic = nn.Sequential(nn.Conv2d(1, 4, 3), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(144, 1), nn.Sigmoid())
    criterion = nn.BCELoss()
    of_critic = torch.optim.Adam(critic.parameters(), lr=0.002, betas=(0.5, 0.999))
    of_generator = torch.optim.Adam(generator.parameters(), lr=0.002, betas=(0.5, 0.999))
    fixed = torch.randn(BATCH, 8)
    for pixels, _ in DataLoader(pictures(), **options()):
        critic.zero_grad()
        real = pixels.to("cpu").float() / 127.5 - 1
        label = torch.full((real.size(0),), REAL, dtype=real.dtype)
        error_real = criterion(critic(real).view(-1), label)
        error_real.backward()
        fake = generator(torch.randn(real.size(0), 8))
        label.fill_(FAKE)
        error_fake = criterion(critic(fake.detach()).view(-1), label)
        error_fake.backward()
        of_critic.step()
        generator.zero_grad()
        label.fill_(REAL)
        error = criterion(critic(fake).view(-1), label)
        error.backward()
        of_generator.step()
        print(repr(error_real.item()), repr(error_fake.item()), repr(error.item()))
    print(generator(fixed).sum().item())
