# pyright: reportPrivateImportUsage=false, reportPrivateUsage=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (torch leaves parts of its signatures untyped; the kernel behind weight_norm has no public name)
"""WaveGlow: audio from mel frames by invertible steps."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class WaveGlow(nn.Module):
    """Twelve flows over groups of 8 samples, each with eight dilated layers (arXiv 1811.00002)."""

    def __init__(self, flows: int = 12, layers: int = 8, channels: int = 512, mels: int = 80) -> None:
        super().__init__()
        self.upsampled = nn.ConvTranspose1d(mels, mels, 1024, stride=256)
        widths = [8 - 2 * (flow // 4) for flow in range(flows)]
        self.mixing = nn.ParameterList(torch.eye(width) for width in widths)
        self.coupling = nn.ModuleList(Coupling(width // 2, 8 * mels, layers, channels) for width in widths)

    def forward(self, mels: Tensor, audio: Tensor) -> Tensor:
        """Negative log-likelihood of audio (batch, samples), given mels (batch, channels, frames)."""
        conditions = self.upsampled(mels)[:, :, : audio.shape[1]]
        conditions = conditions.unflatten(2, (-1, 8)).transpose(2, 3).flatten(1, 2).contiguous()
        x = audio.unflatten(1, (-1, 8)).transpose(1, 2)
        likelihood = x.new_zeros(())
        for flow, (mixing, coupling) in enumerate(zip(self.mixing, self.coupling, strict=True)):
            if flow in (4, 8):
                early, x = x[:, :2], x[:, 2:]
                likelihood = likelihood - early.square().sum() / 2
            x = torch.matmul(mixing, x)
            likelihood = likelihood + len(x) * x.shape[2] * torch.linalg.slogdet(mixing.float())[1]
            first, second = x.chunk(2, 1)
            shift, scale = coupling(first, conditions).chunk(2, 1)
            x = torch.cat([first, scale.exp() * second + shift], 1)
            likelihood = likelihood + scale.sum()
        return (x.square().sum() / 2 - likelihood) / audio.numel()


class Normed(nn.Conv1d):
    """A convolution whose weights are a direction and a length for each output (arXiv 1602.07868)."""

    def __init__(self, inputs: int, outputs: int, kernel: int, dilation: int = 1, padding: int = 0) -> None:
        super().__init__(inputs, outputs, kernel, dilation=dilation, padding=padding)
        self.length = nn.Parameter(torch.ones(outputs, 1, 1))

    def forward(self, input: Tensor) -> Tensor:
        """The convolution of (batch, inputs, groups)."""
        return self._conv_forward(input, torch._weight_norm(self.weight, self.length), self.bias)


class Coupling(nn.Module):
    """Computes a transform of one half of the channels from the other: gated dilated convolutions, as in WaveNet."""

    def __init__(self, inputs: int, conditions: int, layers: int, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.first = Normed(inputs, channels, 1)
        self.last = nn.Conv1d(channels, 2 * inputs, 1)
        nn.init.zeros_(self.last.weight)
        self.seen = nn.ModuleList(Normed(channels, 2 * channels, 3, dilation=2**n, padding=2**n) for n in range(layers))
        self.told = nn.ModuleList(Normed(conditions, 2 * channels, 1) for _ in range(layers))
        self.kept = nn.ModuleList(
            Normed(channels, channels if n == layers - 1 else 2 * channels, 1) for n in range(layers)
        )

    def forward(self, x: Tensor, conditions: Tensor) -> Tensor:
        """Shift and log scale (batch, 2 x inputs, groups)."""
        x = self.first(x)
        output = torch.zeros_like(x)
        for seen, told, kept in zip(self.seen, self.told, self.kept, strict=True):
            value, gate = (seen(x) + told(conditions)).chunk(2, 1)
            found = kept(torch.tanh(value) * torch.sigmoid(gate))
            if found.shape[1] > self.channels:
                x = x + found[:, : self.channels]
                found = found[:, self.channels :]
            output = output + found
        return self.last(output)
