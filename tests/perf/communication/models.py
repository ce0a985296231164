"""Features of small made-up models, by hand: no tracing."""

from stoker.perf.features.records import Layer, Operation, StepFeatures, Weights


def operation(kind: str, module: str, phase: str = "forward", dims: tuple[int, ...] = (), count: int = 1) -> Operation:
    return Operation(
        name=kind, kind=kind, phase=phase, dtype="float32", dims=dims, module=module, count=count, flops=1e9,
        eager_bytes=1e6, fused_bytes=1e6, fused_count=count,
    )  # fmt: skip


def decoder(
    blocks: int = 4, width_bytes: int = 1 << 20, table_bytes: int = 8 << 20, *, sparse: bool = False,
    saved_bytes: int = 64 << 20, output_bytes: int = 4 << 20,
) -> StepFeatures:  # fmt: skip
    """A table, blocks of attention and MLP with 12 units of weights each, a head like the table; Adam in fp32."""
    layers = [
        Layer(
            module="words", embedding_bytes=table_bytes, output_bytes=output_bytes,
            embedding_gradient_bytes=table_bytes // 16 if sparse else table_bytes,
        )
    ]  # fmt: skip
    operations = [operation("embedding", "words")]
    for block in range(blocks):
        path = f"blocks.{block}"
        parts = {
            "norm": 0,
            "attention.inward": 3,
            "attention": 0,
            "attention.outward": 1,
            "mlp.wide": 4,
            "mlp.narrow": 4,
        }
        for name, share in parts.items():
            size = share * width_bytes
            module = f"{path}.{name}"
            layers.append(
                Layer(
                    module=module, dense_bytes=size, dense_gradient_bytes=size, saved_bytes=saved_bytes // 6,
                    output_bytes=output_bytes,
                )
            )  # fmt: skip
            kind = {"norm": "norm", "attention": "attention"}.get(name, "matmul")
            dims = (1, 1024, 1024, 1024) if kind == "matmul" else ()
            operations += [operation(kind, module, phase, dims) for phase in ("forward", "backward")]
    layers.append(
        Layer(module="head", dense_bytes=table_bytes, dense_gradient_bytes=table_bytes, output_bytes=output_bytes)
    )
    operations += [operation("matmul", "head", phase, (1, 1024, 1024, 1024)) for phase in ("forward", "backward")]
    operations.append(operation("pointwise", "", "optimizer"))
    dense = sum(layer.dense_bytes for layer in layers)
    gradients = sum(layer.embedding_gradient_bytes for layer in layers)
    return StepFeatures(
        name="decoder", target="cuda", batch_size=8, operations=tuple(operations), layers=tuple(layers),
        weights=Weights(
            dense_count=dense // 4, embedding_count=table_bytes // 4, dense_bytes=dense, embedding_bytes=table_bytes,
            dense_gradient_bytes=dense, embedding_gradient_bytes=gradients, embedding_touched_bytes=table_bytes // 16,
            optimizer_bytes=2 * (dense + table_bytes),
        ),
        input_bytes=1 << 16, activation_peak_bytes=sum(layer.saved_bytes for layer in layers) + (1 << 20),
        peak_bytes=0,
    )  # fmt: skip


def convnet() -> StepFeatures:
    """Three convolutions, without attention, blocks of attention or tables."""
    layers = tuple(
        Layer(module=f"conv{n}", dense_bytes=1 << 20, dense_gradient_bytes=1 << 20, saved_bytes=1 << 22)
        for n in range(3)
    )
    operations = tuple(operation("conv", f"conv{n}", phase) for n in range(3) for phase in ("forward", "backward"))
    return StepFeatures(
        name="convnet", target="cuda", batch_size=4, operations=operations, layers=layers,
        weights=Weights(
            dense_count=3 << 18, embedding_count=0, dense_bytes=3 << 20, embedding_bytes=0,
            dense_gradient_bytes=3 << 20, embedding_gradient_bytes=0, embedding_touched_bytes=0,
            optimizer_bytes=6 << 20,
        ),
        input_bytes=1 << 16, activation_peak_bytes=3 << 22, peak_bytes=0,
    )  # fmt: skip
