# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (torch leaves parts of its signatures untyped)
"""Networks with a state that moves along the sequence: GNMT and Tacotron 2."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class GNMT(nn.Module):
    """Four LSTM layers encode, four decode; attention is computed once for all steps (arXiv 1609.08144)."""

    def __init__(self, vocabulary: int = 31_800, width: int = 1024, layers: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.both_ways = nn.LSTM(width, width, bidirectional=True)
        self.encoder = nn.ModuleList(nn.LSTM(2 * width if n == 0 else width, width) for n in range(layers - 1))
        self.first = nn.LSTM(width, width)
        self.attention = Additive(width)
        self.decoder = nn.ModuleList(nn.LSTM(2 * width, width) for _ in range(layers - 1))
        self.classifier = nn.Linear(width, vocabulary)

    def forward(self, source: Tensor, before: Tensor, target: Tensor) -> Tensor:
        """Label-smoothed loss of target, given source and the target one token earlier; all (tokens, batch)."""
        memory, _ = self.both_ways(self._dropped(self.words(source)))
        for number, layer in enumerate(self.encoder):
            found, _ = layer(self._dropped(memory))
            memory = found + memory if number else found
        x, _ = self.first(self._dropped(self.words(before)))
        context = self.attention(x, memory)
        for number, layer in enumerate(self.decoder):
            found, _ = layer(torch.cat([self._dropped(x), context], -1))
            x = found + x if number else found
        scores = self.classifier(x)
        return F.cross_entropy(scores.flatten(0, 1), target.flatten(), label_smoothing=0.1)

    def _dropped(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.2, self.training)


class Additive(nn.Module):
    """Normalized additive attention: every query with every key through a tanh."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        """Attention of x (tokens, batch, width) to memory (source tokens, batch, width)."""
        queries, keys = self.query(x).transpose(0, 1), self.key(memory).transpose(0, 1)
        direction = self.weight / self.weight.norm() * self.scale
        scores = torch.tanh(queries.unsqueeze(2) + keys.unsqueeze(1) + self.bias) @ direction
        return (scores.softmax(-1) @ memory.transpose(0, 1)).transpose(0, 1)


class Tacotron2(nn.Module):
    """Text to mel frames, one frame a step (arXiv 1712.05884)."""

    def __init__(self, symbols: int = 148, mels: int = 80) -> None:
        super().__init__()
        self.symbols = nn.Embedding(symbols, 512)
        self.convolutions = nn.Sequential(*(_audio(512, 512, nn.ReLU()) for _ in range(3)))
        self.encoder = nn.LSTM(512, 256, batch_first=True, bidirectional=True)
        self.decoder = SpeechDecoder(mels)
        wide = [_audio(512, 512, nn.Tanh()) for _ in range(3)]
        self.polish = nn.Sequential(_audio(mels, 512, nn.Tanh()), *wide, _audio(512, mels, nn.Identity()))

    def forward(self, text: Tensor, mels: Tensor, stops: Tensor) -> Tensor:
        """Loss of mels (batch, frames, channels) and of where they stop (batch, frames)."""
        x = self.convolutions(self.symbols(text).transpose(1, 2)).transpose(1, 2)
        found, gates = self.decoder(self.encoder(x)[0], mels)
        polished = found + self.polish(found.transpose(1, 2)).transpose(1, 2)
        distance = F.mse_loss(found, mels) + F.mse_loss(polished, mels)
        return distance + F.binary_cross_entropy_with_logits(gates, stops)


class SpeechDecoder(nn.Module):
    """Two LSTM cells and location-sensitive attention."""

    def __init__(self, mels: int) -> None:
        super().__init__()
        self.inputs = nn.ModuleList((nn.Linear(mels, 256, bias=False), nn.Linear(256, 256, bias=False)))
        self.attending, self.speaking = nn.LSTMCell(256 + 512, 1024), nn.LSTMCell(1024 + 512, 1024)
        self.query, self.key = nn.Linear(1024, 128, bias=False), nn.Linear(512, 128, bias=False)
        self.places = nn.Conv1d(2, 32, 31, padding=15, bias=False)
        self.placed, self.score = nn.Linear(32, 128, bias=False), nn.Linear(128, 1, bias=False)
        self.frame, self.gate = nn.Linear(1024 + 512, mels), nn.Linear(1024 + 512, 1)

    def forward(self, memory: Tensor, mels: Tensor) -> tuple[Tensor, Tensor]:
        """Frames and the scores of stopping, each step given the true frame before it."""
        batch, length, _ = memory.shape
        x = F.pad(mels, (0, 0, 1, -1)).transpose(0, 1)
        for layer in self.inputs:
            x = F.dropout(F.relu(layer(x)), 0.5)
        keys = self.key(memory)
        hear = speak = (memory.new_zeros(batch, 1024), memory.new_zeros(batch, 1024))
        context = memory.new_zeros(batch, 512)
        weights = total = memory.new_zeros(batch, length)
        outputs: list[Tensor] = []
        for frame in x:
            hear = self._stepped(self.attending, torch.cat([frame, context], -1), hear)
            looked = self.placed(self.places(torch.stack([weights, total], 1)).transpose(1, 2))
            scores = self.score(torch.tanh(self.query(hear[0]).unsqueeze(1) + looked + keys)).squeeze(-1)
            weights = scores.softmax(-1)
            total = total + weights
            context = torch.bmm(weights.unsqueeze(1), memory).squeeze(1)
            speak = self._stepped(self.speaking, torch.cat([hear[0], context], -1), speak)
            outputs.append(torch.cat([speak[0], context], -1))
        said = torch.stack(outputs, 1)
        return self.frame(said), self.gate(said).squeeze(-1)

    def _stepped(self, cell: nn.LSTMCell, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        hidden, kept = cell(x, state)
        return F.dropout(hidden, 0.1, self.training), kept


def _audio(inputs: int, outputs: int, activation: nn.Module) -> nn.Sequential:
    convolution = nn.Conv1d(inputs, outputs, 5, padding=2)
    return nn.Sequential(convolution, nn.BatchNorm1d(outputs), activation, nn.Dropout(0.5))
