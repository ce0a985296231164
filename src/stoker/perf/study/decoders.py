"""Features of GPT-like decoders in closed form, equal to a traced step's, to check against published runs.

Activations that a block keeps in 16 bits, per token and width: 2 of each norm's input and output, 6 of the products
into the attention, 2 out of it, 8 before and 8 after the GELU: 32 bytes (Korthikanti et al., arXiv 2205.05198, section
4.1, without dropout and with attention that never writes its squares). Logits and their gradient are in 16 bits
(flash-attention's fused cross-entropy, llm-foundry's default, not in place).
"""

from __future__ import annotations

from stoker.perf.features.records import Layer, Operation, Phase, StepFeatures, Weights

_KEPT = 32
_LOGITS = 2 + 2


def decoder(
    width: int, blocks: int, vocabulary: int, batch: int, length: int, *, weight_bytes: int = 4, state_bytes: int = 8
) -> StepFeatures:
    """Blocks of 12 x width² weights; the output layer is the embedding.

    Args:
        width: of the residual stream.
        blocks: of attention and MLP.
        vocabulary: words.
        batch: sequences of a micro-batch.
        length: tokens of each.
        weight_bytes: of a weight and of its gradient.
        state_bytes: of the optimizer, for each weight; 8 for Adam in fp32.
    """
    tokens = batch * length
    stream = 2 * tokens * width
    table, block = (vocabulary + length) * width, 12 * width**2
    layers = [_layer("words", table * weight_bytes, 0, stream)]
    operations: list[Operation] = []
    for number in range(blocks):
        path = f"blocks.{number}"
        layers.append(_layer(path, block * weight_bytes, _KEPT * tokens * width, stream))
        for phase, passes in _PASSES.items():
            squares = 4.0 * tokens * length * width
            operations.append(_operation("attention", path, phase, passes * squares, (1, tokens, length, width)))
            products = 2.0 * tokens * block
            operations.append(_operation("matmul", path, phase, passes * products, (1, tokens, width, width)))
    layers.append(_layer("loss", 0, _LOGITS * tokens * vocabulary, 0))
    for phase, passes in _PASSES.items():
        logits = 2.0 * tokens * vocabulary * width
        operations.append(_operation("matmul", "loss", phase, passes * logits, (1, tokens, vocabulary, width)))
    count = table + blocks * block
    return StepFeatures(
        name=f"decoder of {count / 1e9:.1f} B", target="cuda", batch_size=batch, operations=tuple(operations),
        layers=tuple(layers), input_bytes=8 * tokens, peak_bytes=0,
        activation_peak_bytes=sum(layer.saved_bytes for layer in layers) + 4 * stream,
        weights=Weights(
            dense_count=count, embedding_count=0, dense_bytes=count * weight_bytes, embedding_bytes=0,
            dense_gradient_bytes=count * weight_bytes, embedding_gradient_bytes=0, embedding_touched_bytes=0,
            optimizer_bytes=count * state_bytes,
        ),
    )  # fmt: skip


_PASSES: dict[Phase, float] = {"forward": 1.0, "backward": 2.0}
"""FLOPs of a pass, in those of a forward pass."""


def _layer(path: str, weight_bytes: int, saved_bytes: int, output_bytes: int) -> Layer:
    return Layer(
        module=path, dense_bytes=weight_bytes, dense_gradient_bytes=weight_bytes, saved_bytes=saved_bytes,
        output_bytes=output_bytes,
    )  # fmt: skip


def _operation(kind: str, path: str, phase: Phase, flops: float, dims: tuple[int, ...]) -> Operation:
    return Operation(
        name=kind, kind=kind, phase=phase, dtype="bfloat16", dims=dims, module=path, count=4, flops=flops,
        eager_bytes=0.0, fused_bytes=0.0, fused_count=4,
    )  # fmt: skip
