"""What an operator or a device's kernel does, by its name: product, memory traffic, exchange, copy."""

from __future__ import annotations

import re

_PRODUCTS = re.compile(
    r"""aten::(
        (add|badd)?b?mm_?$ | addmv_?$ | mv$ | v?dot$ | baddbmm_?$ | _addmm_activation | _scaled_mm
        | .*convolution(_backward|_overrideable|_transpose|_relu|_add_relu)?$ | _?mkldnn_linear.* | mkldnn_rnn.*
        | _slow_conv.* | slow_conv.* | _conv_depthwise.* | _thnn_.*lstm.* | _?cudnn_rnn.* | _nnpack.* | miopen_rnn.*
        | .*(flash|efficient|cudnn|fused)_attention.* | _scaled_dot_product_attention_math
        | _trilinear | linalg_.* | _weight_int.*pack_mm.* | int_mm | _int_mm | _grouped_mm
    )""",
    re.VERBOSE,
)
_VIEWS = re.compile(
    r"""(aten::)?(
        view | _?reshape(_alias|_copy)? | _unsafe_view | expand(_as)? | t_? | transpose_? | permute | as_strided_?
        | slice | select | narrow | split(_with_sizes)? | unsafe_split | chunk | unbind | squeeze_? | unsqueeze_?
        | detach_? | alias | flatten | unflatten | movedim | diagonal | real | imag | view_as.* | lift_fresh | resize_
        | empty.* | new_empty.* | set_ | resolve_conj | resolve_neg | result_type | is_.* | item | _local_scalar_dense
        | size | stride | numel | sym_.* | requires_grad_ | data | _version | unfold | .*_data_ptr | record_stream
        | contiguous | to | type_as | can_cast | promote_types | stack_bounds | _has_same_storage_numel
    )$""",
    re.VERBOSE,
)
"""These do not touch a tensor's memory themselves; ``contiguous`` and ``to`` copy inside another operator."""
_COMPILED = re.compile(r"## Call CompiledFxGraph|Call CompiledFxGraph|triton_|graph_\d+_cpp_fused")

_KERNEL_COMPUTE = re.compile(
    r"gemm|gemv|cutlass|cublas|xmma|wgrad|dgrad|fprop|conv(?!ert)|winograd|flash|fmha|mha_|attention|lstm|gru|rnn|"
    r"triton_tem|_mm_|splitk|nvjet|implicit",
    re.IGNORECASE,
)
_KERNEL_COMMUNICATION = re.compile(r"nccl|rccl|all_?reduce|all_?gather|reduce_?scatter", re.IGNORECASE)


def label_of_operator(name: str, *, is_wrapper: bool = False) -> str | None:
    """What an operator's own time, without the operators that it calls, is spent on.

    Args:
        name: as torch's profiler has it.
        is_wrapper: whether torch implements it by other operators, so that its own time is dispatch.

    Returns:
        A label; None for ranges that are not operators (annotations, nodes of the backward pass).
    """
    if name.startswith(("c10d::", "gloo:", "nccl:", "mpi:", "ucc:", "c10d_functional::", "_c10d_functional::")):
        return "communication"
    if _COMPILED.search(name):
        return "memory"
    if "::" not in name or name.startswith(("autograd::", "torch::", "torch.", "stoker::")):
        return None
    if _PRODUCTS.match(name):
        return "compute"
    if is_wrapper or _VIEWS.match(name):
        return "host"
    return "memory"


def label_of_kernel(name: str, operator: str = "") -> str:
    """What a device's kernel is spent on.

    Args:
        name: of the kernel, or of a copy by the device's copy engine.
        operator: that started it, if known: it takes precedence, since names of kernels vary.
    """
    if _KERNEL_COMMUNICATION.search(name):
        return "communication"
    if name.startswith("Memcpy HtoD"):
        return "copy"
    if name.startswith(("Memcpy", "Memset")):
        return "memory"
    if operator and (label := label_of_operator(operator)) in ("compute", "communication"):
        return label
    if operator.startswith("aten::") and not _COMPILED.search(operator):
        return "memory"
    return "compute" if _KERNEL_COMPUTE.search(name) else "memory"
