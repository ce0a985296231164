"""What to write instead of what is refused, by the names of operations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MASKS = (
    "make masks of sizes, and of inputs that are truth values or whole numbers: by comparing, combining, reshaping and "
    "filling, element by element"
)
"""What to do about truth values that depend on an input in another way."""
OTHERWISE = "write it with those of docs/guide/deploy.md, or leave it out of the module"
"""What to do about an operation that no other advice is for."""
_SCORES = "return the scores, and choose among them outside of the module"
_UNROLLED = "write its steps with `nn.Linear`, sigmoid and tanh, as a loop of a constant length"
_FLAT = "use convolutions and pools of one or two dimensions"
_NORMED = "write it with `s = (x * x).sum(-1, keepdim=True)`, and `x * torch.rsqrt(s + 1e-12)`"
_JOINED = "join the parts by `torch.cat`, instead of writing into one"
_RANDOM = "draw them in training alone, behind `if self.training`"
DROPOUTS = ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
_DRAWN = (
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal", "uniform", "bernoulli",
    "exponential", "multinomial", "poisson", "geometric", "log_normal", "cauchy", "random", "binomial",
    "_sample_dirichlet",
)  # fmt: skip
"""Operations whose results would become constants of the package."""
NEXT: Mapping[str, str] = {
    **dict.fromkeys(("argmax", "argmin", "topk", "sort", "argsort", "max", "min"), _SCORES),
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell"), _UNROLLED),
    **dict.fromkeys(("conv3d", "max_pool3d", "avg_pool3d", "adaptive_avg_pool3d"), _FLAT),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d"), "upsample by `nn.Upsample` and convolve instead"),
    **dict.fromkeys(
        ("upsample_bilinear2d", "upsample_nearest2d", "upsample_nearest1d"), 'use `mode="nearest"` and a whole factor'
    ),
    "cumsum": "multiply by a constant with ones up to its diagonal instead, or sum whole inputs",
    **dict.fromkeys(("linalg_vector_norm", "norm", "cosine_similarity", "pairwise_distance", "cdist"), _NORMED),
    **dict.fromkeys(("std", "var", "std_mean", "var_mean"), "write it with the means of `x` and of `x * x`"),
    "one_hot": "use an `nn.Embedding` with the identity as its table",
    "embedding_renorm_": "renormalise the table once after training, and leave `max_norm` out",
    "pow": "write `a ** x` as `torch.exp(x * math.log(a))`",
    "unfold": "take the windows by slices, and join them by `torch.stack`",
    "im2col": "use a convolution, or `reshape` and `permute`",
    **dict.fromkeys(("copy", "copy_", "index_put", "index_put_", "slice_scatter", "select_scatter"), _JOINED),
    "einsum": "write it with `matmul` and `permute`",
    "logsumexp": "subtract `log_softmax` of a number from the number instead",
}
"""What to do about operations that are refused, by their names."""


def drawn_rule(name: str, given: Mapping[str, Any], *, seeded: bool) -> str:
    """The rule that an operation breaks by drawing random numbers; empty if it draws none.

    Args:
        name: of the operation.
        given: its arguments by their names.
        seeded: whether torch says that it may draw some.
    """
    share = given.get("train", given.get("training", given.get("dropout_p", True)))
    if name in DROPOUTS and share:
        return "a dropout must be off in evaluation mode; give it `training=self.training`"
    if name == "scaled_dot_product_attention" and share:
        return (
            f"`dropout_p` must be 0 in evaluation mode, got {share}; give it "
            "`dropout_p=self.p if self.training else 0.0`"
        )
    if name in _DRAWN or (seeded and (share or share is None)):  # torch takes none as training
        return f"random numbers must not be drawn in evaluation mode; {_RANDOM}"
    return ""
