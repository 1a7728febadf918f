"""What PyTorch's Python layers need to know of the operators: results of fake and meta tensors.

The checks and sizes are those of csrc/ops/checks.cpp, run on symbolic sizes.
"""

import torch

from . import _C

# PyTorch leaves out arguments that equal the schema's defaults, so the defaults stand here again.


def _new_result(like, operation, a, b, bias, size, stride, padding, output_padding, groups, dilation, memory_format):
    sizes, channels_last = _C.infer(
        operation,
        a,
        b,
        bias,
        size,
        stride,
        padding,
        output_padding,
        groups,
        dilation,
        memory_format,
    )
    result_format = torch.channels_last if channels_last else torch.contiguous_format
    result = torch.empty(sizes, dtype=like.dtype, device=like.device, memory_format=result_format)
    unbatched = like.dim() == 3 and operation != _C.Operation.weight_grad
    return result.squeeze(0) if unbatched else result


@torch.library.register_fake("convt::conv_transpose2d")
def _(input, weight, bias=None, stride=(1,), padding=(0,), output_padding=(0,), groups=1, dilation=(1,)):
    forward = _C.Operation.forward
    return _new_result(input, forward, input, weight, bias, [], stride, padding, output_padding, groups, dilation, None)


@torch.library.register_fake("convt::conv_transpose2d_input_grad")
def _(grad_output, weight, input_size, stride=(1,), padding=(0,), groups=1, dilation=(1,), *, memory_format=None):
    operation = _C.Operation.input_grad
    return _new_result(
        grad_output, operation, grad_output, weight, None, input_size, stride, padding, [0], groups, dilation,
        memory_format,
    )  # fmt: skip


@torch.library.register_fake("convt::conv_transpose2d_weight_grad")
def _(input, grad_output, kernel_size, stride=(1,), padding=(0,), groups=1, dilation=(1,), *, memory_format=None):
    operation = _C.Operation.weight_grad
    return _new_result(
        input, operation, input, grad_output, None, kernel_size, stride, padding, [0], groups, dilation, memory_format
    )
