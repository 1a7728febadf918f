"""What PyTorch's Python layers need to know of the operators: results of fake tensors, vmap, FLOP counts."""

import torch
from torch.utils.flop_counter import conv_flop_count, register_flop_formula

from . import _C

# PyTorch leaves out arguments that equal the schema's defaults, so the defaults stand here again.

# Fake and meta tensors. The checks and sizes are those of csrc/ops/checks.cpp, run on symbolic sizes.


def _new_result(operation, a, b, bias, size, stride, padding, output_padding, groups, dilation, memory_format=None):
    sizes, channels_last = _C.infer(
        operation, a, b, bias, size, stride, padding, output_padding, groups, dilation, memory_format
    )
    result_format = torch.channels_last if channels_last else torch.contiguous_format
    result = torch.empty(sizes, dtype=a.dtype, device=a.device, memory_format=result_format)
    unbatched = a.dim() == 3 and operation != _C.Operation.weight_grad
    return result.squeeze(0) if unbatched else result


@torch.library.register_fake("convt::conv_transpose2d")
def _(input, weight, bias=None, stride=(1,), padding=(0,), output_padding=(0,), groups=1, dilation=(1,)):
    return _new_result(_C.Operation.forward, input, weight, bias, (), stride, padding, output_padding, groups, dilation)


@torch.library.register_fake("convt::conv_transpose2d_input_grad")
def _(grad_output, weight, input_size, stride=(1,), padding=(0,), groups=1, dilation=(1,), *, memory_format=None):
    operands = (grad_output, weight, None, input_size)
    return _new_result(_C.Operation.input_grad, *operands, stride, padding, (0,), groups, dilation, memory_format)


@torch.library.register_fake("convt::conv_transpose2d_weight_grad")
def _(input, grad_output, kernel_size, stride=(1,), padding=(0,), groups=1, dilation=(1,), *, memory_format=None):
    operands = (input, grad_output, None, kernel_size)
    return _new_result(_C.Operation.weight_grad, *operands, stride, padding, (0,), groups, dilation, memory_format)


# vmap: the batch is folded into an axis of one call. By role, with G groups of ci input and co output channels,
#
#     x (N, G ci, H, W)    w (G ci, co, kh, kw)    y (N, G co, H, W)
#
# every two of them share one axis besides G. If both operands are batched, the batch becomes groups. If one is, the
# batch goes into the axis that it shares with the result and not with the other operand: N, ci or co.

# What the first two dimensions of each are, split.
_SPLIT = {"x": ("N", "G", "ci"), "w": ("G", "ci", "co"), "y": ("N", "G", "co")}
_SHARED = {frozenset("xy"): "N", frozenset("xw"): "ci", frozenset("wy"): "co"}


def _split(role, first, second, groups):
    return [groups, first // groups, second] if role == "w" else [first, groups, second // groups]


def _merged(role, split):
    return [split[0] * split[1], split[2]] if role == "w" else [split[0], split[1] * split[2]]


def _fold(role, t, axis, groups, batch):
    """(batch, *tensor) -> tensor, with the batch folded into an axis as its slower part."""
    split, image = _split(role, *t.shape[1:3], groups), t.shape[3:]
    where = _SPLIT[role].index(axis)
    t = t.reshape(batch, *split, *image).movedim(0, where)
    split[where] *= batch
    return t.reshape(*_merged(role, split), *image)


def _unfold(role, t, axis, groups, batch):
    """The inverse of :func:`_fold`."""
    split, image = _split(role, *t.shape[:2], groups * batch if axis == "G" else groups), t.shape[2:]
    where = _SPLIT[role].index(axis)
    split[where] //= batch
    t = t.reshape(*split[:where], batch, *split[where:], *image).movedim(where, 0)
    return t.reshape(batch, *_merged(role, split), *image)


def _vmap_bilinear(batch, roles, result_role, operands, in_dims, groups, call):
    """The operator ``call(a, b, groups, axis)`` over a batch of one operand or of both; the result's is dimension 0.

    `axis` is the one that the batch was folded into.
    """
    batched = [dim is not None for dim in in_dims]
    axis = "G" if all(batched) else _SHARED[frozenset((roles[batched.index(True)], result_role))]
    folded = []
    unbatched_images = False
    for role, t, dim in zip(roles, operands, in_dims, strict=True):
        if dim is not None:
            t = t.movedim(dim, 0)
        if role != "w" and t.dim() == (3 if dim is None else 4):
            t = t.unsqueeze(-4)
            unbatched_images = True
        folded.append(t if dim is None else _fold(role, t, axis, groups, batch))
    result = call(*folded, groups * batch if axis == "G" else groups, axis)
    result = _unfold(result_role, result, axis, groups, batch)
    return result.squeeze(1) if unbatched_images and result_role != "w" else result


@torch.library.register_vmap("convt::conv_transpose2d")
def _(info, in_dims, input, weight, bias=None, stride=(1,), padding=(0,), output_padding=(0,), groups=1, dilation=(1,)):
    batch = info.batch_size
    bias_batched = bias is not None and in_dims[2] is not None
    if bias_batched:
        bias = bias.movedim(in_dims[2], 0)
    # A weight for each sample makes an output channel for each sample, with a bias of its own. Without, biases of the
    # samples are added to the output that they share.
    bias_in_call = bias is not None and (in_dims[1] is not None or not bias_batched)

    def call(x, w, call_groups, axis):
        b = bias if bias_in_call else None
        if b is not None and axis != "N":
            # y's channels are (batch, G, co), or (G, batch, co) where the batch went into co.
            b = b.reshape(-1, groups, b.shape[-1] // groups).expand(batch, -1, -1)
            b = (b.movedim(0, 1) if axis == "co" else b).reshape(b.numel())
        return torch.ops.convt.conv_transpose2d(x, w, b, stride, padding, output_padding, call_groups, dilation)

    if in_dims[0] is None and in_dims[1] is None:
        y = call(input, weight, groups, "N").unsqueeze(0)
    else:
        y = _vmap_bilinear(batch, "xw", "y", (input, weight), in_dims[:2], groups, call)
    if bias is not None and not bias_in_call:
        images = [1] * (y.dim() - 4)
        y = y + bias.reshape(batch, *images, -1, 1, 1)
    return y, 0


@torch.library.register_vmap("convt::conv_transpose2d_input_grad")
def _(
    info,
    in_dims,
    grad_output,
    weight,
    input_size,
    stride=(1,),
    padding=(0,),
    groups=1,
    dilation=(1,),
    *,
    memory_format=None,
):
    def call(y, w, call_groups, axis):
        return torch.ops.convt.conv_transpose2d_input_grad(
            y, w, input_size, stride, padding, call_groups, dilation, memory_format=memory_format
        )

    return _vmap_bilinear(info.batch_size, "yw", "x", (grad_output, weight), in_dims[:2], groups, call), 0


@torch.library.register_vmap("convt::conv_transpose2d_weight_grad")
def _(
    info,
    in_dims,
    input,
    grad_output,
    kernel_size,
    stride=(1,),
    padding=(0,),
    groups=1,
    dilation=(1,),
    *,
    memory_format=None,
):
    def call(x, y, call_groups, axis):
        return torch.ops.convt.conv_transpose2d_weight_grad(
            x, y, kernel_size, stride, padding, call_groups, dilation, memory_format=memory_format
        )

    return _vmap_bilinear(info.batch_size, "xy", "w", (input, grad_output), in_dims[:2], groups, call), 0


# FLOPs, as torch.utils.flop_counter counts those of aten's convolutions.


def _batched(shape):
    return [1, *shape] if len(shape) == 3 else list(shape)


def _flops(x_shape, w_shape, y_shape):
    return conv_flop_count(_batched(x_shape), list(w_shape), _batched(y_shape), transposed=True)


@register_flop_formula(torch.ops.convt.conv_transpose2d)
def _(input_shape, weight_shape, *args, out_shape=None, **kwargs):
    return _flops(input_shape, weight_shape, out_shape)


@register_flop_formula(torch.ops.convt.conv_transpose2d_input_grad)
def _(grad_output_shape, weight_shape, *args, out_shape=None, **kwargs):
    return _flops(out_shape, weight_shape, grad_output_shape)


@register_flop_formula(torch.ops.convt.conv_transpose2d_weight_grad)
def _(input_shape, grad_output_shape, *args, out_shape=None, **kwargs):
    return _flops(input_shape, out_shape, grad_output_shape)
