"""Models with masks that depend on inputs, one for each form in which programs write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tests.deploy.networks import Of

LENGTH, WIDTH, HEADS = 6, 8, 2
Inputs = tuple[torch.Tensor, ...]


def kept(count: int) -> torch.Tensor:
    """What counts, (count, LENGTH): the first element always does."""
    counts = torch.rand(count, LENGTH) < 0.6
    counts[:, 0] = True
    return counts


def rows(count: int) -> torch.Tensor:
    return torch.randn(count, LENGTH, WIDTH)


def tokens(count: int) -> torch.Tensor:
    """Row numbers, 0 for padding."""
    return torch.randint(1, 12, (count, LENGTH)) * kept(count)


def heads_of(self: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    parts = self.l(x).chunk(3, -1)
    return [each.view(-1, LENGTH, HEADS, WIDTH // HEADS).transpose(1, 2) for each in parts]


def attended(self: nn.Module, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return functional.scaled_dot_product_attention(*heads_of(self, x), attn_mask=mask).transpose(1, 2).flatten(2)


def filled(self: nn.Module, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    query, key, value = heads_of(self, x)
    scores = query @ key.transpose(-2, -1) / 2
    scores = scores.masked_fill(~mask[:, None, None, :], float("-inf"))
    return (torch.dropout(scores.softmax(-1), 0.1, False) @ value).transpose(1, 2).flatten(2)


def chosen(self: nn.Module, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """A causal mask and one of an input, one after another, in the words of GPT-2."""
    query, key, value = heads_of(self, x)
    scores = query @ key.transpose(-2, -1) * 0.5
    causal = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    scores = torch.where(causal, scores, torch.finfo(scores.dtype).min)
    scores = scores + (1.0 - mask[:, None, None, :].to(scores.dtype)) * torch.finfo(scores.dtype).min
    return (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)


def across(self: nn.Module, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """A softmax along an axis that is not the last."""
    return self.l(x).masked_fill(mask[:, :, None] == 0, -1e9).softmax(1)


def expanded(self: nn.Module, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    wide = mask[:, None, None, :].expand(mask.shape[0], 1, LENGTH, LENGTH).to(x.dtype)
    inverted = 1.0 - wide
    return attended(self, x, inverted.masked_fill(inverted.to(torch.bool), torch.finfo(x.dtype).min))


def flattened(self: nn.Module, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Heads and samples are one axis after the mask was added."""
    query, key, value = heads_of(self, x)
    scores = query @ key.transpose(-2, -1) / 2 + (1.0 - mask[:, None, None, :]) * -10000.0
    shares = scores.view(-1, LENGTH, LENGTH).softmax(-1)
    return torch.bmm(shares, value.reshape(-1, LENGTH, WIDTH // HEADS)).view(-1, HEADS, LENGTH, WIDTH // HEADS)


def both_ways(self: nn.Module, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Each input twice, along rows and along columns, and a diagonal; no product of what each says."""
    near = torch.eye(LENGTH, dtype=torch.bool)
    return attended(self, x, ((mask[:, None, :, None] & mask[:, None, None, :]) | near))


def near(self: nn.Module) -> torch.Tensor:
    """Numbers by head and distance, as T5 adds them to scores."""
    places = torch.arange(LENGTH)
    return self.b(places[None] - places[:, None] + LENGTH).permute(2, 0, 1)[None]


def biased(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return attended(self, x, near(self))


def biased_and_masked(self: nn.Module, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    left_out = (1.0 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
    return attended(self, x, near(self) + left_out)


def shorter(self: nn.Module, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return attended(self, x, (torch.arange(LENGTH) < lengths[:, None])[:, None, None])


def summed_up(self: nn.Module, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The first three that count."""
    return attended(self, x, ((mask.cumsum(1) <= 3) & mask)[:, None, None])


def averaged(self: nn.Module, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """A mean over what counts, after a layer whose results elsewhere are 0."""
    hidden = self.l(x).masked_fill(~mask.unsqueeze(-1), 0.0)
    return hidden.sum(1) * (mask.to(x.dtype).sum(1, keepdim=True) + 1).reciprocal()


def with_a_token(self: nn.Module, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """A token before the others, which counts in every sample."""
    tokens = torch.cat([self.token.weight[None].expand(x.shape[0], -1, -1), x[:, 1:]], 1)
    counts = torch.cat([torch.ones(mask.shape[0], 1, dtype=torch.long), mask[:, 1:]], 1)
    return attended(self, tokens, counts[:, None, None].to(torch.bool))


def padded(self: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return self.t(self.e(ids), src_key_padding_mask=ids == 0)


def padded_causal(self: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    return self.t(self.e(ids), mask=mask, src_key_padding_mask=ids.eq(0), is_causal=True)


def weighted(self: nn.Module, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return self.a(x, x, x, key_padding_mask=mask)[0]


def layer() -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(WIDTH, HEADS, 16, dropout=0.0, batch_first=True)


def masked_models() -> dict[str, tuple[nn.Module, Callable[[int], Inputs]]]:
    """By name: a module, and what makes its inputs."""
    torch.manual_seed(0)

    def of(function: Callable[..., Any], **layers: nn.Module) -> nn.Module:
        return Of(function, **({"l": nn.Linear(WIDTH, 3 * WIDTH)} | layers)).eval()

    def truth(count: int) -> Inputs:
        return rows(count), kept(count)

    def whole(count: int) -> Inputs:
        return rows(count), kept(count).long()

    encoder = nn.TransformerEncoder(layer(), 2)
    return {
        "attention, truth": (of(attended), lambda count: (rows(count), kept(count)[:, None, None])),
        "attention, by row": (
            of(attended), lambda count: (rows(count), kept(count)[:, None, None] | torch.eye(LENGTH).bool())
        ),
        "attention, by head": (
            of(attended), lambda count: (rows(count), torch.stack([kept(count), kept(count)], 1)[:, :, None])
        ),
        "encoder layer": (
            Of(lambda s, x, m: s.t(x, src_key_padding_mask=m), t=layer()).eval(),
            lambda count: (rows(count), ~kept(count)),
        ),
        "encoder": (of(padded, e=nn.Embedding(12, WIDTH), t=encoder), lambda count: (tokens(count),)),
        "causal encoder": (of(padded_causal, e=nn.Embedding(12, WIDTH), t=encoder), lambda count: (tokens(count),)),
        "weights wanted": (
            of(weighted, a=nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)),
            lambda count: (rows(count), ~kept(count)),
        ),
        "filled": (of(filled), truth),
        "chosen": (of(chosen), whole),
        "across": (of(across), whole),
        "expanded": (of(expanded), whole),
        "flattened": (of(flattened), whole),
        "token": (of(with_a_token, token=nn.Embedding(1, WIDTH)), whole),
        "both ways": (of(both_ways), truth),
        "lengths": (of(shorter), lambda count: (rows(count), torch.randint(1, LENGTH + 1, (count,)))),
        "biased": (of(biased, b=nn.Embedding(2 * LENGTH, HEADS)), lambda count: (rows(count),)),
        "biased and masked": (of(biased_and_masked, b=nn.Embedding(2 * LENGTH, HEADS)), whole),
        "summed up": (of(summed_up), truth),
        "averaged": (of(averaged), truth),
    }  # fmt: skip
