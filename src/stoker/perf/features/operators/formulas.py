# pyright: reportUnknownArgumentType=false
"""FLOPs and bytes of single operations, by explicit formulas for the target's kernels, not for this CPU.

A multiplication and its addition are two FLOPs. Bytes are what a kernel must read and write once when nothing stays on
the chip between kernels; tables are charged by the rows that are touched. FLOPs of elementwise work are the arithmetic
of its textbook form, constants below; their time is small compared with its bytes.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from stoker.perf.features.operators import cpu_kernels, scratch
from stoker.perf.features.operators.calls import base_name, is_view
from stoker.perf.features.operators.costs import Cost, Formula, Touch, all_of, elements, simple, touched
from stoker.perf.features.torch_private import schema_of

SOFTMAX_FLOPS = 5
"""Per element: maximum, subtraction, exponential, sum, division."""
SOFTMAX_BACKWARD_FLOPS = 4
NORM_FLOPS = 8
"""Per element: mean, variance (3), subtraction, scaling, weight and bias."""
NORM_BACKWARD_FLOPS = 14


def _matmul(first: int, batched: bool) -> Formula:
    """A product of ``args[first]`` and the next argument; an argument before them is added to the result."""

    def cost(args: tuple[Any, ...], ins: list[Tensor], outs: list[Tensor]) -> Cost:
        a, b = args[first], args[first + 1]
        batch = a.shape[0] if batched else 1
        m = a.shape[-2] if a.dim() > 1 else 1
        n = b.shape[-1] if b.dim() > 1 else 1
        dims = (batch, m, n, a.shape[-1])
        return Cost("matmul", 2.0 * math.prod(dims), dims, all_of(ins), all_of(outs))

    return cost


def _grouped(args: tuple[Any, ...], ins: list[Tensor], outs: list[Tensor]) -> Cost:
    """Each row of the first argument times the matrix of its group."""
    a, b = args[:2]
    dims = (1, math.prod(a.shape[:-1]), b.shape[-1], a.shape[-1])
    return Cost("matmul", 2.0 * math.prod(dims), dims, all_of(ins), all_of(outs))


def _conv_flops(x: Tensor, weight: Tensor, out: Tensor, transposed: bool) -> float:
    """Weight's shape is (out, in/groups, *kernel); (in, out/groups, *kernel) when transposed."""
    positions = (x if transposed else out).shape
    return 2.0 * positions[0] * math.prod(positions[2:]) * math.prod(weight.shape)


def _conv_dims(x: Tensor, weight: Tensor, out: Tensor, groups: int) -> tuple[int, ...]:
    """Batch, channels in and out, groups, elements of the kernel, positions of the output."""
    return (x.shape[0], x.shape[1], out.shape[1], groups, math.prod(weight.shape[2:]), math.prod(out.shape[2:]))


def _convolution(args: tuple[Any, ...], ins: list[Tensor], outs: list[Tensor]) -> Cost:
    x, weight, transposed, groups = args[0], args[1], args[6], args[8]
    flops = _conv_flops(x, weight, outs[0], transposed)
    taken = scratch.convolution(x, weight, outs[0], groups)
    return Cost("conv", flops, _conv_dims(x, weight, outs[0], groups), all_of(ins), all_of(outs), taken)


def _convolution_backward(args: tuple[Any, ...], ins: list[Tensor], outs: list[Tensor]) -> Cost:
    """The gradients of input and weight each take the multiplications of the forward pass, groups or not."""
    grad, x, weight = args[:3]
    transposed, groups, wanted = args[7], args[9], args[10]
    once = _conv_flops(x, weight, grad, transposed)
    flops = once * (bool(wanted[0]) + bool(wanted[1])) + (grad.numel() if wanted[2] else 0)
    reads = [Touch(grad, touched(grad).bytes * sum(map(bool, wanted)))]
    reads += [touched(weight)] if wanted[0] else []
    reads += [touched(x)] if wanted[1] else []
    taken = scratch.convolution_backward(x, weight, grad, groups, args[4], wanted)
    return Cost("conv", flops, _conv_dims(x, weight, grad, groups), reads, all_of(outs), taken)


def _sum(args: tuple[Any, ...], ins: list[Tensor], outs: list[Tensor]) -> Cost:
    found = REDUCTION(args, ins, outs)
    dims: Any = args[1] if len(args) > 1 else None
    return found._replace(scratch=scratch.column_sum(ins[0], dims)) if isinstance(dims, (list, tuple)) else found


def _softmax(flops_per_element: float, tensors: int) -> Formula:
    """A softmax of the first tensors; they are copied where their elements do not lie in order."""
    formula = simple("softmax", flops_per_element)

    def cost(args: tuple[Any, ...], ins: list[Tensor], outs: list[Tensor]) -> Cost:
        return formula(args, ins, outs)._replace(scratch=scratch.softmax(ins[:tensors]))

    return cost


def _twice(kind: str, flops_per_element: float, tensors: int) -> Formula:
    """Statistics need a separate pass over the first tensors: a whole batch does not fit on the chip."""

    def cost(args: tuple[Any, ...], ins: list[Tensor], outs: list[Tensor]) -> Cost:
        largest = elements([*ins, *outs])
        reads = all_of(ins)
        reads = [Touch(t.tensor, t.bytes * 2) if n < tensors else t for n, t in enumerate(reads)]
        return Cost(kind, flops_per_element * largest, (largest,), reads, all_of(outs))

    return cost


def _embedding(args: tuple[Any, ...], ins: list[Tensor], outs: list[Tensor]) -> Cost:
    weight, indices = args[:2]
    rows = Touch(weight, outs[0].numel() * weight.element_size())
    dims = (indices.numel(), weight.shape[-1], weight.shape[0])
    return Cost("embedding", 0.0, dims, [rows, touched(indices)], all_of(outs))


def _embedding_dense_backward(args: tuple[Any, ...], ins: list[Tensor], outs: list[Tensor]) -> Cost:
    """The table of gradients is zeroed, then its rows are added to."""
    grad, indices, num_rows = args[:3]
    table, added = touched(outs[0]), touched(grad)
    writes = [Touch(outs[0], table.bytes + added.bytes)]
    dims = (indices.numel(), grad.shape[-1], num_rows)
    return Cost("embedding", grad.numel(), dims, [Touch(grad, 2 * added.bytes), touched(indices)], writes)


def _embedding_bag(args: tuple[Any, ...], ins: list[Tensor], outs: list[Tensor]) -> Cost:
    weight, indices, offsets = args[:3]
    size = indices.numel() * weight.shape[1]
    dims = (indices.numel(), weight.shape[1], weight.shape[0])
    reads = [Touch(weight, size * weight.element_size()), touched(indices), touched(offsets)]
    return Cost("embedding", size, dims, reads, all_of(outs[:1]))


def _embedding_bag_backward(args: tuple[Any, ...], ins: list[Tensor], outs: list[Tensor]) -> Cost:
    grad, indices = args[:2]
    rows = float(indices.numel() * grad.shape[-1] * grad.element_size())
    written = all_of(outs)[0]
    dense = outs[0].layout is torch.strided
    writes = [Touch(written.tensor, written.bytes + rows)] if dense else [written]
    dims = (indices.numel(), grad.shape[-1], outs[0].shape[0])
    reads = [Touch(grad, rows + (rows if dense else 0)), touched(indices)]
    return Cost("embedding", indices.numel() * grad.shape[-1], dims, reads, writes)


def _gather(args: tuple[Any, ...], ins: list[Tensor], outs: list[Tensor]) -> Cost:
    """Only the selected elements are read."""
    taken = all_of(outs)
    reads = [Touch(ins[0], taken[0].bytes), *all_of(ins[1:])]
    return Cost("indexing", 0.0, (outs[0].numel(),), reads, taken)


def _scatter(args: tuple[Any, ...], ins: list[Tensor], outs: list[Tensor]) -> Cost:
    """Indices and values are read; indexed elements are read and written; out of place, the rest is copied."""
    others = all_of(ins[1:])
    moved = touched(ins[-1]).bytes if len(ins) > 1 else 0.0
    copied = 0.0 if outs and outs[0] is ins[0] else touched(ins[0]).bytes
    reads = [Touch(ins[0], copied + moved), *others]
    return Cost("indexing", ins[-1].numel(), (ins[-1].numel(),), reads, [Touch(outs[0], copied + moved)])


def _nll_loss(args: tuple[Any, ...], ins: list[Tensor], outs: list[Tensor]) -> Cost:
    """One element per row is read."""
    scores, target = args[:2]
    picked = Touch(scores, target.numel() * scores.element_size())
    return Cost("reduction", target.numel(), (target.numel(),), [picked, touched(target)], all_of(outs))


def _nll_loss_backward(args: tuple[Any, ...], ins: list[Tensor], outs: list[Tensor]) -> Cost:
    return Cost("fill", 0.0, (outs[0].numel(),), all_of([args[0], args[2]]), all_of(outs))


def _fourier(args: tuple[Any, ...], ins: list[Tensor], outs: list[Tensor]) -> Cost:
    """Five operations per element for each doubling of the length (Cooley and Tukey, radix 2)."""
    size = elements([*ins, *outs])
    length = math.prod(ins[0].shape[dim] for dim in args[1])
    return Cost("fourier", 5.0 * size * math.log2(max(2, length)), (size, length), all_of(ins), all_of(outs))


def _linalg(flops_per_cube: float) -> Formula:
    """FLOPs for square matrices, by the cube of their side (Golub and Van Loan, Matrix Computations, tables)."""

    def cost(args: tuple[Any, ...], ins: list[Tensor], outs: list[Tensor]) -> Cost:
        matrix = max(ins, key=lambda tensor: tensor.numel())
        batch, rows, columns = math.prod(matrix.shape[:-2]), *matrix.shape[-2:]
        flops = flops_per_cube * batch * rows * columns * min(rows, columns)
        return Cost("linalg", flops, (batch, rows, columns), all_of(ins), all_of(outs))

    return cost


def _pointwise(args: tuple[Any, ...], ins: list[Tensor], outs: list[Tensor]) -> Cost:
    """Each element once; with a sparse argument only its rows."""
    sparse = [tensor for tensor in ins if tensor.layout is torch.sparse_coo]
    if not sparse:
        return _ELEMENTWISE(args, ins, outs)
    rows = all_of(sparse[:1])[0]
    count = rows.tensor.numel()
    reads, writes = ([Touch(t, rows.bytes) if t.layout is torch.strided else rows for t in ts] for ts in (ins, outs))
    return Cost("indexing", count, (count,), reads, writes)


def _copy_into(args: tuple[Any, ...], ins: list[Tensor], outs: list[Tensor]) -> Cost:
    return Cost("copy", 0.0, (outs[0].numel(),), all_of(ins[1:2]), all_of(outs))


def _fill(args: tuple[Any, ...], ins: list[Tensor], outs: list[Tensor]) -> Cost:
    return Cost("fill", 0.0, (elements(outs),), [], all_of(outs))


def _random(args: tuple[Any, ...], ins: list[Tensor], outs: list[Tensor]) -> Cost:
    return Cost("random", 10.0 * elements(outs), (elements(outs),), [], all_of(outs))


def _lists(flops_per_element: float) -> Formula:
    """Elementwise work on all tensors of a list at once."""

    def cost(args: tuple[Any, ...], ins: list[Tensor], outs: list[Tensor]) -> Cost:
        size = sum(tensor.numel() for tensor in args[0])
        return Cost("pointwise", flops_per_element * size, (size,), all_of(ins), all_of(outs))

    return cost


def _fused_optimizer(args: tuple[Any, ...], ins: list[Tensor], outs: list[Tensor]) -> Cost:
    size = sum(tensor.numel() for tensor in args[0])
    return Cost("pointwise", 12.0 * size, (size,), all_of(ins), all_of(outs or ins))


def _exchange(args: tuple[Any, ...], ins: list[Tensor], outs: list[Tensor]) -> Cost:
    """A collective that the program calls itself: the bytes that it sends and receives."""
    return Cost("communication", 0.0, (elements(ins),), all_of(ins), all_of(outs))


def free(args: tuple[Any, ...], ins: list[Tensor], outs: list[Tensor]) -> Cost:
    """No kernel, or none that touches data."""
    return Cost("", 0.0, (), (), ())


def _names(formula: Formula, names: str) -> dict[str, Formula]:
    return dict.fromkeys(names.split(), formula)


_ELEMENTWISE = simple("pointwise", 1.0)
RMS_NORM_BACKWARD = _twice("norm", NORM_BACKWARD_FLOPS, 2)

FORMULAS: dict[str, Formula] = {
    **{name: _matmul(0, False) for name in ("mm", "mv", "dot", "vdot", "_int_mm", "_scaled_mm")},
    **{name: _matmul(1, False) for name in ("addmm", "addmv", "_addmm_activation")},
    **{"bmm": _matmul(0, True), "baddbmm": _matmul(1, True), "addbmm": _matmul(1, True), "_grouped_mm": _grouped},
    **{"convolution": _convolution, "convolution_backward": _convolution_backward},
    **_names(
        simple("norm", NORM_FLOPS),
        "native_layer_norm native_group_norm _fused_rms_norm _cdist_forward _weight_norm_interface",
    ),
    **_names(
        _twice("norm", NORM_BACKWARD_FLOPS, 2),
        """
        native_layer_norm_backward native_group_norm_backward _fused_rms_norm_backward native_batch_norm_backward
        batch_norm_backward cudnn_batch_norm_backward _weight_norm_interface_backward
        """,
    ),
    **_names(
        _twice("norm", NORM_FLOPS, 1),
        """
        native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional cudnn_batch_norm
        _batch_norm_with_update _batch_norm_with_update_functional
        """,
    ),
    "_native_batch_norm_legit_no_training": simple("norm", 2),
    "_batch_norm_no_update": simple("norm", 2),
    **_names(_softmax(SOFTMAX_FLOPS, 1), "_softmax _log_softmax _safe_softmax"),
    **_names(
        _softmax(SOFTMAX_BACKWARD_FLOPS, 2),
        "_softmax_backward_data _log_softmax_backward_data _masked_softmax_backward",
    ),
    "embedding": _embedding,
    "embedding_dense_backward": _embedding_dense_backward,
    **_names(_embedding_bag, "_embedding_bag _embedding_bag_forward_only"),
    **_names(_embedding_bag_backward, "_embedding_bag_backward _embedding_bag_dense_backward"),
    "_scaled_dot_product_flash_attention_for_cpu": cpu_kernels.flash,
    "_scaled_dot_product_flash_attention_for_cpu_backward": cpu_kernels.flash_backward,
    "mkldnn_rnn_layer": cpu_kernels.lstm_layer,
    "mkldnn_rnn_layer_backward": cpu_kernels.lstm_layer_backward,
    **_names(
        _gather,
        "index gather index_select take masked_select _unsafe_index unfold_backward embedding_renorm nonzero "
        "sparse_mask",
    ),
    **_names(
        _scatter,
        """
        scatter scatter_add index_put index_add index_copy index_fill scatter_reduce _index_put_impl
        _unsafe_index_put masked_scatter put slice_scatter select_scatter index_reduce
        """,
    ),
    **_names(_nll_loss, "nll_loss_forward nll_loss2d_forward"),
    **_names(_nll_loss_backward, "nll_loss_backward nll_loss2d_backward"),
    "copy": _copy_into,
    **_names(
        _fill,
        """
        fill zero zeros ones full arange linspace eye zeros_like ones_like full_like new_zeros new_ones new_full
        tril_indices triu_indices scalar_tensor
        """,
    ),
    **_names(
        _random,
        """
        bernoulli uniform normal random exponential rand randn randint randperm rand_like randn_like randint_like
        normal_functional geometric log_normal multinomial cauchy poisson _standard_gamma _fused_dropout
        _sample_dirichlet _dirichlet_grad binomial
        """,
    ),
    **_names(
        simple("copy"),
        """
        clone _to_copy cat stack repeat roll flip constant_pad_nd slice_backward select_backward _reshape_copy
        unfold_copy new_empty_strided_copy as_strided_copy _sparse_mask resize pixel_shuffle pixel_unshuffle im2col
        col2im reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d replication_pad3d
        reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d reflection_pad3d_backward _to_dense
        replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward diagonal_backward
        channel_shuffle repeat_interleave view_copy tril triu rot90 block_diag diag_embed split_with_sizes_copy
        _chunk_cat
        """,
    ),
    **_names(
        simple("pooling", 1.0),
        """
        max_pool2d_with_indices max_pool3d_with_indices avg_pool2d avg_pool3d _adaptive_avg_pool2d
        _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d max_pool2d_with_indices_backward
        max_pool3d_with_indices_backward avg_pool2d_backward avg_pool3d_backward _adaptive_avg_pool2d_backward
        _adaptive_avg_pool3d_backward adaptive_max_pool2d_backward upsample_nearest1d upsample_nearest2d
        _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
        _upsample_nearest_exact2d_backward adaptive_max_pool3d_backward upsample_nearest1d_backward
        upsample_nearest3d upsample_nearest2d_backward upsample_nearest3d_backward max_unpool2d
        fractional_max_pool2d
        """,
    ),
    **_names(
        simple("pooling", 8.0),
        """
        upsample_bilinear2d upsample_bilinear2d_backward upsample_linear1d upsample_linear1d_backward
        upsample_bicubic2d upsample_bicubic2d_backward upsample_trilinear3d upsample_trilinear3d_backward
        _upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward upsample_trilinear3d_backward
        _upsample_bicubic2d_aa grid_sampler_2d grid_sampler_2d_backward grid_sampler_3d grid_sampler_3d_backward
        """,
    ),
    **_names(
        simple("reduction", 1.0),
        """
        mean prod amax amin max min argmax argmin all any var var_mean std std_mean logsumexp cumsum cumprod
        cumlogsumexp cummax cummin nansum linalg_vector_norm norm median mode aminmax mse_loss smooth_l1_loss
        huber_loss binary_cross_entropy binary_cross_entropy_with_logits dist nanmedian bincount histc count_nonzero
        logcumsumexp trace soft_margin_loss multi_margin_loss multilabel_margin_loss_forward kthvalue searchsorted
        bucketize segment_reduce _segment_reduce_backward is_same_size equal _is_all_true _is_any_true
        """,
    ),
    **_names(
        simple("pointwise", 1.0),
        """
        native_dropout native_dropout_backward where masked_fill lerp addcmul addcdiv gelu_backward silu_backward
        mse_loss_backward smooth_l1_loss_backward huber_loss_backward binary_cross_entropy_backward glu glu_backward
        _prelu_kernel _prelu_kernel_backward log_sigmoid_forward log_sigmoid_backward rrelu_with_noise threshold
        _thnn_fused_lstm_cell _thnn_fused_gru_cell complex polar view_as_complex_copy outer ger masked_fill_backward
        renorm soft_margin_loss_backward _euclidean_dist normalize cross linalg_cross elu_backward
        hardsigmoid_backward hardswish hardswish_backward hardtanh_backward leaky_relu_backward softplus_backward
        rrelu_with_noise_backward floor_divide rsub addr abs eq ne lt le gt ge gelu mish copysign gcd lcm heaviside
        xlogy hann_window isin _masked_scale masked_scatter_backward _thnn_fused_lstm_cell_backward_impl
        affine_grid_generator
        """,
    ),
    **_names(_fourier, "_fft_r2c _fft_c2c _fft_c2r"),
    **_names(simple("scan", 10.0), "_ctc_loss _ctc_loss_backward _cudnn_ctc_loss"),
    **_names(_linalg(2 / 3), "_linalg_slogdet _linalg_det linalg_lu linalg_lu_factor linalg_lu_factor_ex"),
    **_names(_linalg(8 / 3), "_linalg_solve_ex linalg_inv_ex"),
    **_names(_linalg(2.0), "linalg_lu_solve cholesky_inverse"),
    **_names(_linalg(1.0), "linalg_solve_triangular triangular_solve"),
    **_names(_linalg(1 / 3), "linalg_cholesky_ex cholesky"),
    **_names(_linalg(4 / 3), "linalg_qr linalg_householder_product"),
    **_names(_linalg(9.0), "_linalg_eigh"),
    **_names(_linalg(22.0), "_linalg_svd linalg_eig"),
    **_names(simple("sort", 16.0), "sort topk argsort msort _unique2 unique_dim unique_consecutive _coalesce"),
    **_names(_fused_optimizer, "_fused_adam _fused_adamw _fused_sgd _fused_adagrad"),
    "_amp_foreach_non_finite_check_and_unscale": _lists(2),
    "_amp_update_scale": simple("pointwise", 1.0),
    **_names(
        free,
        """
        empty empty_like empty_strided new_empty new_empty_strided detach lift_fresh lift alias set_
        _local_scalar_dense _assert_async _assert_tensor_metadata record_stream is_pinned _efficientzerotensor
        sym_size _record_function_enter_new _record_function_exit _record_function_enter _values _indices
        _sparse_coo_tensor_unsafe _sparse_coo_tensor_with_dims_and_tensors _coalesced sparse_dim dense_dim _nnz
        resolve_conj resolve_neg device profiler _version set _has_compatible_shallow_copy_type sym_numel sym_stride
        _pin_memory retain_grad is_coalesced _unsafe_view _reshape_alias unsafe_split unsafe_split_with_sizes
        unsafe_chunk t transpose unsqueeze squeeze swapdims swapaxes as_strided empty_permuted unbind_copy
        _use_cudnn_ctc_loss
        """,
    ),
}  # fmt: skip

REDUCTION = simple("reduction", 1.0)
FORMULAS["sum"] = _sum
TAKING_SCRATCH = frozenset((
    "convolution", "convolution_backward", "sum", "_softmax", "_log_softmax", "_safe_softmax", "_softmax_backward_data",
    "_log_softmax_backward_data",
))  # fmt: skip
"""Operations whose kernels may take memory while they run; those of stand-ins say so themselves."""
UNKNOWN = simple("unknown")


def formula_of(func: Any) -> Formula:
    """The formula of a torch operation: by name, by torch's own tags, or that of unknown operations."""
    name = base_name(func)
    if str(schema_of(func).name).startswith(("c10d::", "_c10d_functional::")):
        return _exchange if name not in ("barrier", "wait_tensor", "monitored_barrier_") else free
    if name in FORMULAS:
        return FORMULAS[name]
    if name.startswith("_foreach_"):
        return _lists(0.0 if name in ("_foreach_copy", "_foreach_zero") else 1.0)
    if is_view(func):
        return free
    if torch.Tag.pointwise in func.tags or name.startswith("special_"):
        return _pointwise
    reduction = getattr(torch.Tag, "reduction", None)
    if reduction is not None and reduction in func.tags:
        return REDUCTION
    return UNKNOWN
