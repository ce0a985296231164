"""Features of GPT-like decoders in closed form: what a traced step would say, without tracing.

Activations that a block keeps in 16 bits, per token and width: 2 of each norm's input and output, 6 of the products
into the attention, 2 out of it, 8 before and 8 behind the GELU: 32 bytes (Korthikanti et al., arXiv 2205.05198, section
4.1, without dropout and with attention that never writes its squares). Logits and their gradient are in 16 bits
(flash-attention's fused cross-entropy, which llm-foundry takes by default, not in place).
"""

from stoker.perf.features.records import Layer, Operation, StepFeatures, Weights

KEPT = 32
_LOGITS = 2 + 2


def decoder(
    width: int, blocks: int, vocabulary: int, batch: int, length: int, *, weight_bytes: int = 4, state_bytes: int = 8
) -> StepFeatures:
    """Blocks of 12 x width² weights; Adam's two moments in fp32; the embedding is the output layer."""
    tokens = batch * length
    stream = 2 * tokens * width
    table = (vocabulary + length) * width
    block = 12 * width**2
    layers = [
        Layer(
            module="words",
            dense_bytes=table * weight_bytes,
            dense_gradient_bytes=table * weight_bytes,
            output_bytes=stream,
        )
    ]
    operations: list[Operation] = []
    for number in range(blocks):
        path = f"blocks.{number}"
        size = block * weight_bytes
        layers.append(
            Layer(
                module=path,
                dense_bytes=size,
                dense_gradient_bytes=size,
                saved_bytes=KEPT * tokens * width,
                output_bytes=stream,
            )
        )
        operations += [_operation("attention", path, ()), _operation("matmul", path, (1, tokens, width, width))]
    layers.append(Layer(module="loss", saved_bytes=_LOGITS * tokens * vocabulary))
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


def _operation(kind: str, path: str, dims: tuple[int, ...]) -> Operation:
    return Operation(
        name=kind, kind=kind, phase="forward", dtype="bfloat16", dims=dims, module=path, count=4, flops=1.0,
        eager_bytes=0.0, fused_bytes=0.0, fused_count=1,
    )  # fmt: skip
