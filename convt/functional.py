"""The operators as functions."""

import torch
from torch import Tensor
from torch._jit_internal import BroadcastingList2  # as in torch.nn.functional: an int or a list, for TorchScript

from . import _C, _extension  # noqa: F401  (defines torch.ops.convt)

_forward = torch.ops.convt.conv_transpose2d.default
_input_grad = torch.ops.convt.conv_transpose2d_input_grad.default
_weight_grad = torch.ops.convt.conv_transpose2d_weight_grad.default


def _list(value):
    """An int stands for both axes; ``torch.ops`` takes lists only."""
    return value if isinstance(value, (tuple, list)) else [value]


def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: BroadcastingList2[int] = 1,
    padding: BroadcastingList2[int] = 0,
    output_padding: BroadcastingList2[int] = 0,
    groups: int = 1,
    dilation: BroadcastingList2[int] = 1,
) -> Tensor:
    r"""Transposed 2-D convolution; takes what :func:`torch.nn.functional.conv_transpose2d` takes.

    Per axis, with stride s, padding p, dilation d, kernel size k, output padding q:

        out = (in - 1) s - 2 p + d (k - 1) + q + 1
        y[o] = bias + sum of x[i] w[t] over all taps t with o + p = i s + t d and 0 <= i < in

    The sum is accumulated in float32 (float64 for float64) in a fixed order: the same inputs give the same bits.

    Args:
        input: (N, Cin, H, W) or (Cin, H, W); float16, bfloat16, float32, float64 or complex; any strides.
        weight: (Cin, Cout / groups, kh, kw), of the same dtype and device; it is not flipped.
        bias: (Cout,) or None.
        stride, padding, output_padding, dilation: an int or a pair (height, width), in pixels. output_padding must be
            smaller than stride or dilation.
        groups: divides Cin and Cout.

    Returns:
        (N, Cout, Hout, Wout), or (Cout, Hout, Wout) for an unbatched input; channels_last in memory if input or weight
        is, as in torch.

    Raises:
        RuntimeError: for arguments that do not fit together, before anything is computed.
    """
    if torch.jit.is_scripting():  # TorchScript calls operators, not Python's functions
        return torch.ops.convt.conv_transpose2d(input, weight, bias, stride, padding, output_padding, groups, dilation)
    if torch.compiler.is_compiling():
        return _forward(
            input, weight, bias, _list(stride), _list(padding), _list(output_padding), groups, _list(dilation)
        )
    # The same operator without the microseconds that torch.ops takes for its arguments.
    return _C.conv_transpose2d(input, weight, bias, stride, padding, output_padding, groups, dilation)


def conv_transpose2d_input_grad(
    grad_output, weight, input_size, stride=1, padding=0, groups=1, dilation=1, *, memory_format=None
):
    """Gradient of :func:`conv_transpose2d` by its input: an ordinary strided convolution of ``grad_output``.

    Args:
        grad_output: (N, Cout, Hout, Wout) or (Cout, Hout, Wout).
        weight: (Cin, Cout / groups, kh, kw). For complex tensors pass its conjugate.
        input_size: (H, W) of the input.
        stride, padding, groups, dilation: the forward's.
        memory_format: of the result; by default that which the operands suggest.

    Returns:
        (N, Cin, H, W) or (Cin, H, W).
    """
    return _input_grad(
        grad_output,
        weight,
        _list(input_size),
        _list(stride),
        _list(padding),
        groups,
        _list(dilation),
        memory_format=memory_format,
    )


def conv_transpose2d_weight_grad(
    input, grad_output, kernel_size, stride=1, padding=0, groups=1, dilation=1, *, memory_format=None
):
    """Gradient of :func:`conv_transpose2d` by its weight: a correlation, reduced over N, H and W.

    Args:
        input: (N, Cin, H, W) or (Cin, H, W). For complex tensors pass its conjugate.
        grad_output: (N, Cout, Hout, Wout) or (Cout, Hout, Wout).
        kernel_size: (kh, kw).
        stride, padding, groups, dilation: the forward's.
        memory_format: of the result; by default that which the operands suggest.

    Returns:
        (Cin, Cout / groups, kh, kw).
    """
    return _weight_grad(
        input,
        grad_output,
        _list(kernel_size),
        _list(stride),
        _list(padding),
        groups,
        _list(dilation),
        memory_format=memory_format,
    )
