"""A small convolutional network; the pixels are scaled and normalised in the loop."""

import torch
from data import options, pictures, update
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.drop = nn.Dropout(0.25)
        self.out = nn.Linear(4 * 16, 4)

    def forward(self, pixels):
        hidden = functional.max_pool2d(functional.relu(self.conv(pixels)), 2)
        return functional.log_softmax(self.out(self.drop(torch.flatten(hidden, 1))), dim=1)


def main():
    model = Net()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=0.1)
    loader = DataLoader(pictures(), **options(pin_memory=False))
    device = torch.device("cpu")
    for pixels, labels in loader:
        pixels, labels = pixels.to(device, non_blocking=True), labels.to(device)
        pixels = pixels.float() / 255
        pixels = (pixels - 0.1307) / 0.3081
        update(functional.nll_loss(model(pixels), labels), optimizer)
