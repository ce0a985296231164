"""Small modules of torch, one for each operation that becomes integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Inputs = tuple[torch.Tensor, ...]


class Of(nn.Module):
    """A function with layers."""

    def __init__(self, function: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.function(self, *inputs)


class Positions(nn.Module):
    """Learned positions and a token before the others, as vision transformers have them."""

    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.randn(1, 6, 16) * 0.3)
        self.token = nn.Parameter(torch.randn(1, 1, 16))
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation="gelu", norm_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = torch.cat([self.token.expand(x.shape[0], -1, -1), x + self.position], 1)
        return self.head(self.layer(tokens)[:, 0])


def images(*sizes: int) -> Callable[[int], Inputs]:
    return lambda count: (torch.randn(count, *sizes),)


def conv(*arguments: Any, **options: Any) -> nn.Module:
    return nn.Conv2d(*arguments, **options)


def norm(channels: int) -> nn.BatchNorm2d:
    layer = nn.BatchNorm2d(channels)
    with torch.no_grad():
        for each in (layer.running_mean, layer.weight, layer.bias):
            each.copy_(torch.randn(channels) * 0.5 + 1)
        layer.running_var.copy_(torch.rand(channels) + 0.5)
    return layer


def gained(layer: Any) -> Any:
    """A norm with gains and, where it has them, offsets that differ by channel."""
    with torch.no_grad():
        for each in layer.parameters():
            each.copy_(torch.rand(each.shape) + 0.5)
    return layer


def sloped(layer: nn.PReLU) -> nn.PReLU:
    with torch.no_grad():
        layer.weight.copy_(torch.linspace(-0.3, 0.6, len(layer.weight)))
    return layer


def tracked(layer: nn.InstanceNorm2d) -> nn.InstanceNorm2d:
    """A norm with statistics that it has seen."""
    layer.train()
    for _ in range(20):
        layer(torch.randn(8, layer.num_features, 4, 4) * 0.7 + 0.2)
    return gained(layer)


def modules() -> dict[str, tuple[nn.Module, Callable[[int], Inputs]]]:
    """By name: a module and what makes its inputs."""
    torch.manual_seed(0)
    image = images(3, 8, 8)
    row = images(12)
    sequence = images(6, 16)
    functions: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "relu6": F.relu6,
        "hardswish": F.hardswish,
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "gelu": F.gelu,
        "silu": F.silu,
        "leaky": F.leaky_relu,
        "elu": F.elu,
        "hardsigmoid": F.hardsigmoid,
        "clamp": lambda x: x.clamp(-1, 2),
        "scaled": lambda x: (x * 2 - 0.5) / 3,
        "negative": lambda x: -x,
        "square": lambda x: x**2,
        "cube": lambda x: x**3,
        "selu": F.selu,
        "celu": lambda x: F.celu(x, 0.5),
        "rrelu": F.rrelu,
        "softplus": lambda x: F.softplus(x, 2.0, 1.5),
        "softshrink": F.softshrink,
        "threshold": lambda x: F.threshold(x, 0.1, 0.1),
        "log sigmoid": F.logsigmoid,
        "subtracted": lambda x: 1 - x,
        "clip": lambda x: torch.clip(x, -1, 1),
        "exponential less one": torch.expm1,
        "logarithms": lambda x: torch.log1p(x.abs()) + torch.log2(x.abs() + 1),
        "waves": lambda x: torch.sin(x) + torch.cos(x),
        "erf": torch.erf,
        "reciprocal": lambda x: x * (x.abs() + 1).reciprocal(),
        "glu": lambda x: F.glu(F.pad(x, (0, 1)), 1),
        "stack": lambda x: torch.stack([x, -x], -1).unbind(1)[2],
        "repeat": lambda x: x.repeat(1, 2).roll(3, 1),
        "expand": lambda x: x[:, :, None].expand(-1, -1, 3).flatten(1),
        "expanded twice": lambda x: x[:, None].expand(-1, 3, -1) + torch.tanh(x)[:, None].expand(-1, 3, -1),
        "expanded factors": lambda x: torch.matmul(x[:, None, :1].expand(-1, 3, 4), x[:, :4, None]),
        "between": lambda x: torch.lerp(x, torch.maximum(x, -x), 0.3),
        "least": lambda x: torch.minimum(x, -0.5 * x),
        "product added": lambda x: torch.addcmul(x, x, x, value=0.5),
        "parts": lambda x: torch.hstack([*x.tensor_split(2, 1)[::-1], x.narrow(1, 1, 2)]),
    }
    found: dict[str, tuple[nn.Module, Callable[[int], Inputs]]] = {
        name: (Of(lambda s, x, f=function: f(s.l(x)), l=nn.Linear(12, 7)), row) for name, function in functions.items()
    }
    found |= {
        "linear": (nn.Linear(12, 7), row),
        "mlp": (nn.Sequential(nn.Linear(12, 9), nn.ReLU(), nn.Dropout(), nn.Linear(9, 4)), row),
        "stride": (conv(3, 5, 3, stride=2, padding=1), image),
        "dilation": (conv(3, 4, (3, 2), dilation=2, padding=(2, 0)), image),
        "same": (conv(3, 4, (3, 5), padding="same"), image),
        "groups": (nn.Sequential(conv(3, 6, 1), conv(6, 8, 3, groups=2)), image),
        "depthwise": (nn.Sequential(conv(3, 3, 3, padding=1, groups=3), norm(3), nn.ReLU6(), conv(3, 5, 1)), image),
        "multiplied channels": (conv(3, 6, 3, groups=3), image),
        "batch norm": (nn.Sequential(conv(3, 5, 3, bias=False), norm(5), nn.ReLU()), image),
        "batch norm alone": (nn.Sequential(norm(3), conv(3, 4, 3)), image),
        "conv1d": (nn.Sequential(nn.Conv1d(3, 5, 3, stride=2, padding=1), nn.ReLU(), nn.MaxPool1d(2), nn.Flatten()),
                   images(3, 16)),
        "max pool": (nn.Sequential(conv(3, 4, 3), nn.MaxPool2d(3, stride=2, padding=1)), image),
        "max pool, ceiling": (nn.MaxPool2d(3, stride=2, ceil_mode=True), image),
        "mean pool": (nn.AvgPool2d(3, stride=2, padding=1), image),
        "mean pool, not padded": (nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False), image),
        "adaptive": (nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 3)), image),
        "residual": (Of(lambda s, x: F.relu(x + s.c(x)) - 0.5 * x, c=conv(3, 3, 3, padding=1)), image),
        "product": (Of(lambda s, x: torch.sigmoid(s.c(x)) * x, c=conv(3, 3, 1)), image),
        "squeeze": (Of(lambda s, x: x * torch.sigmoid(s.c(x.mean((2, 3), keepdim=True))), c=conv(3, 3, 1)), image),
        "concat": (Of(lambda s, x: torch.cat([s.a(x), s.b(x).relu(), x], 1), a=conv(3, 2, 1), b=conv(3, 4, 1)), image),
        "flatten": (nn.Sequential(conv(3, 4, 3), nn.Flatten(), nn.Linear(144, 5)), image),
        "mean": (Of(lambda s, x: s.l(s.c(x).mean((2, 3))), c=conv(3, 6, 3), l=nn.Linear(6, 4)), image),
        "patches": (Of(lambda s, x: s.l(x.reshape(-1, 3, 4, 2, 4, 2).permute(0, 2, 4, 1, 3, 5)
                       .reshape(-1, 16, 12)).mean(1), l=nn.Linear(12, 5)), image),
        "halves": (Of(lambda s, x: torch.mul(*s.l(x).chunk(2, 1)), l=nn.Linear(12, 8)), row),
        "step": (Of(lambda s, x: s.l(x)[:, 1::2], l=nn.Linear(12, 7)), row),
        "prelu": (Of(lambda s, x: s.p(s.c(x)), c=conv(3, 4, 3), p=sloped(nn.PReLU(4))), image),
        "group norm": (nn.Sequential(conv(3, 6, 3), gained(nn.GroupNorm(2, 6))), image),
        "instance norm": (nn.Sequential(conv(3, 6, 3), nn.InstanceNorm2d(6)), image),
        "instance norm, tracked": (nn.Sequential(conv(3, 6, 3), tracked(nn.InstanceNorm2d(6, affine=True,
                                   track_running_stats=True))), image),
        "root mean square norm": (nn.Sequential(nn.Linear(16, 16), gained(nn.RMSNorm(16))), sequence),
        "pad": (Of(lambda s, x: s.c(F.pad(x, (1, 0, 2, 1))), c=conv(3, 4, 3)), image),
        "pad, value": (Of(lambda s, x: F.pad(s.c(x), (0, 2), value=0.5), c=conv(3, 4, 3)), image),
        "pad, cropped": (Of(lambda s, x: F.pad(s.c(x), (-1, 2, 1, -2)), c=conv(3, 4, 3)), image),
        "pad, reflected": (conv(3, 4, 3, padding=1, padding_mode="reflect"), image),
        "pad, replicated": (nn.Sequential(nn.ReplicationPad2d((2, 0, 1, 1)), conv(3, 4, 3)), image),
        "pad, circular": (conv(3, 4, 3, padding=1, padding_mode="circular"), image),
        "nearest": (Of(lambda s, x: F.interpolate(s.c(x), size=(12, 18)), c=conv(3, 4, 3)), image),
        "nearest, fewer": (Of(lambda s, x: F.interpolate(s.c(x), scale_factor=0.5), c=conv(3, 4, 3)), image),
        "nearest of rows": (nn.Sequential(nn.Conv1d(3, 5, 3), nn.Upsample(scale_factor=2)), images(3, 9)),
        "pixel shuffle": (nn.Sequential(conv(3, 8, 3), nn.PixelShuffle(2)), image),
        "pixel unshuffle": (nn.Sequential(nn.PixelUnshuffle(2), conv(12, 4, 3)), image),
        "channel shuffle": (Of(lambda s, x: F.channel_shuffle(s.c(x), 2), c=conv(3, 6, 3)), image),
        "largest of places": (Of(lambda s, x: s.l(s.c(x).amax((2, 3))), c=conv(3, 6, 3), l=nn.Linear(6, 4)), image),
        "largest of channels": (Of(lambda s, x: s.c(x).max(1, keepdim=True).values, c=conv(3, 6, 3)), image),
        "least of columns": (Of(lambda s, x: s.c(x).amin(-1), c=conv(3, 6, 3)), image),
        "excitation": (Of(lambda s, x: x * torch.sigmoid(s.c(x.mean((2, 3), keepdim=True))).expand_as(x),
                          c=conv(3, 3, 1)), image),
        "moved axes": (Of(lambda s, x: s.c(x).movedim(1, -1).swapaxes(1, 2).mT, c=conv(3, 6, 3)), image),
        "added product": (Of(lambda s, x: torch.baddbmm(torch.ones(6, 6), x, x.transpose(1, 2), beta=0.5)), sequence),
        "layer norm": (nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16)), sequence),
        "softmax": (Of(lambda s, x: torch.softmax(2 * s.l(x), -1), l=nn.Linear(12, 6)), row),
        "log softmax": (nn.Sequential(nn.Linear(12, 6), nn.LogSoftmax(1)), row),
        "softmax of channels": (Of(lambda s, x: torch.softmax(s.c(x), 1), c=conv(3, 5, 3)), image),
        "log softmax of channels": (Of(lambda s, x: torch.log_softmax(s.c(x), -3), c=conv(3, 5, 3)), image),
        "log softmax between": (Of(lambda s, x: s.l(F.log_softmax(s.c(x), 1).flatten(1)), c=conv(3, 5, 5, stride=2),
                                   l=nn.Linear(20, 4)), image),
        "norm of rows": (Of(lambda s, x: s.b(s.l(x).flatten(0, 1)).relu().unflatten(0, (-1, 6)),
                            l=nn.Linear(16, 8), b=gained(nn.BatchNorm1d(8))), sequence),
        "attention": (nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), sequence),
        "positions": (Positions(), sequence),
        "causal": (Of(lambda s, x: F.scaled_dot_product_attention(  # of two heads
                          *(each.unflatten(2, (2, 8)).transpose(1, 2) for each in (s.q(x), s.k(x), x)), is_causal=True),
                      q=nn.Linear(16, 16), k=nn.Linear(16, 16)), sequence),
        "embedding": (Of(lambda s, i, x: s.l(torch.cat([s.e(i), x], 1)), e=nn.Embedding(50, 8), l=nn.Linear(12, 4)),
                      lambda count: (torch.randint(0, 50, (count,)), torch.randn(count, 4))),
        "tokens": (Of(lambda s, i: s.l(s.e(i).mean(1)), e=nn.Embedding(50, 8), l=nn.Linear(8, 4)),
                   lambda count: (torch.randint(0, 50, (count, 7)),)),
        "bag": (Of(lambda s, i: s.l(s.e(i)), e=nn.EmbeddingBag(30, 8, mode="mean"), l=nn.Linear(8, 4)),
                lambda count: (torch.randint(0, 30, (count, 5)),)),
    }  # fmt: skip
    return {name: (module.eval(), make) for name, (module, make) in found.items()}
