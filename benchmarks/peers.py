"""Ways to compute a layer: convt, and what a user has today."""

import torch
import torch.nn.functional as F

import convt

from .cases import OPTIONAL_PEERS


def universal(operation):
    """The peers that compute every layer."""
    return ("torch", *OPTIONAL_PEERS) if operation == "forward" else ("torch", "cudnn_benchmark")


class NotApplicable(Exception):
    """This implementation does not compute this function: no row."""


def build(impl, operation, case, layout, x, w, bias=None, dy=None):
    """A function without arguments that computes the layer and returns the result.

    Constant preparation of weights happens here, outside of what is timed, as it would in a model that is loaded.

    Args:
        impl: "convt" or the name of a peer.
        x, w, bias, dy: the operands, in the memory layout of the row; dy for the gradients only.

    Raises:
        NotApplicable: if the implementation cannot express the layer.
        ValueError: if it could but must not be run; the reason.
    """
    if operation == "forward":
        return globals()[f"_{impl}"](case, layout, x, w, bias)
    if impl == "convt":
        geometry = (case.stride, case.padding, case.groups, case.dilation)
        if operation == "input_grad":
            return lambda: convt.conv_transpose2d_input_grad(dy, w, (case.h, case.w), *geometry)
        return lambda: convt.conv_transpose2d_weight_grad(x, dy, case.kernel, *geometry)
    if impl not in universal(operation):
        raise NotApplicable
    mask = [operation == "input_grad", operation == "weight_grad", False]
    which = mask.index(True)

    def call():
        return torch.ops.aten.convolution_backward(
            dy, x, w, None, case.stride, case.padding, case.dilation, True, case.output_padding, case.groups, mask
        )[which]

    return _searched(call) if impl == "cudnn_benchmark" else call


def _arguments(case):
    return case.stride, case.padding, case.output_padding, case.groups, case.dilation


def _convt(case, layout, x, w, bias):
    arguments = _arguments(case)
    return lambda: convt.conv_transpose2d(x, w, bias, *arguments)


def _torch(case, layout, x, w, bias):
    arguments = _arguments(case)
    return lambda: F.conv_transpose2d(x, w, bias, *arguments)


def _torch_compile(case, layout, x, w, bias):
    # A graph of an earlier layer would count against the recompile limit.
    torch._dynamo.reset()
    arguments = _arguments(case)
    compiled = torch.compile(lambda x, w, bias: F.conv_transpose2d(x, w, bias, *arguments), dynamic=False)
    return lambda: compiled(x, w, bias)


def _searched(call):
    def searched():
        torch.backends.cudnn.benchmark = True
        try:
            return call()
        finally:
            torch.backends.cudnn.benchmark = False

    return searched


def _cudnn_benchmark(case, layout, x, w, bias):
    return _searched(_torch(case, layout, x, w, bias))


def _gemm_shuffle(case, layout, x, w, bias):
    """k = s: every input pixel makes a block of kh x kw outputs of its own. A GEMM, then one pass that permutes."""
    if (case.kernel, case.padding, case.output_padding) != (case.stride, (0, 0), (0, 0)) or case.groups > 1:
        raise NotApplicable
    n, cin, h, width, cout, kh, kw = case.n, case.cin, case.h, case.w, case.cout, case.kh, case.kw
    if layout == "nchw":
        matrix = w.reshape(cin, cout * kh * kw).t().contiguous().expand(n, -1, -1)
        pixels = x.view(n, cin, h * width)
        added = None if bias is None else bias.view(cout, 1, 1, 1, 1)

        def call():
            blocks = torch.bmm(matrix, pixels).view(n, cout, kh, kw, h, width).permute(0, 1, 4, 2, 5, 3)
            y = x.new_empty(blocks.shape)
            y.copy_(blocks) if added is None else torch.add(blocks, added, out=y)
            return y.view(n, cout, h * kh, width * kw)

        return call
    matrix = w.permute(0, 2, 3, 1).reshape(cin, kh * kw * cout)
    pixels = x.permute(0, 2, 3, 1).reshape(n * h * width, cin)

    def call():
        blocks = torch.mm(pixels, matrix).view(n, h, width, kh, kw, cout).permute(0, 1, 3, 2, 4, 5)
        y = x.new_empty(blocks.shape)
        y.copy_(blocks) if bias is None else torch.add(blocks, bias, out=y)
        return y.view(n, h * kh, width * kw, cout).permute(0, 3, 1, 2)

    return call


def _gemm_fold(case, layout, x, w, bias):
    """All products of an input pixel by one GEMM, then col2im."""
    if layout != "nchw" or any(q >= s for q, s in zip(case.output_padding, case.stride, strict=True)):
        raise NotApplicable
    n, g, pixels, rows = case.n, case.groups, case.h * case.w, case.cout * case.kh * case.kw
    if n * rows * pixels >= 2**31:
        raise ValueError("its columns would have more than 2^31 elements")
    matrix = w.reshape(g, case.cin // g, rows // g).mT.contiguous()
    matrix = (matrix.expand(n, -1, -1) if g == 1 else matrix.repeat(n, 1, 1)).view(n * g, rows // g, case.cin // g)
    image = x.view(n * g, case.cin // g, pixels)
    size, kernel, dilation, padding, stride = case.out_size, case.kernel, case.dilation, case.padding, case.stride

    def call():
        y = F.fold(torch.bmm(matrix, image).view(n, rows, pixels), size, kernel, dilation, padding, stride)
        return y if bias is None else y.add_(bias.view(-1, 1, 1))

    return call


def _conv2d_flipped(case, layout, x, w, bias):
    """Stride 1: an ordinary convolution with the kernel flipped and its channels exchanged."""
    padding = [d * (k - 1) - p for d, k, p in zip(case.dilation, case.kernel, case.padding, strict=True)]
    if case.stride != (1, 1) or case.output_padding != (0, 0) or min(padding) < 0:
        raise NotApplicable
    g = case.groups
    flipped = w.flip(2, 3).unflatten(0, (g, -1)).transpose(1, 2).flatten(0, 1)
    flipped = flipped.contiguous(memory_format=torch.channels_last if layout == "nhwc" else torch.contiguous_format)
    return lambda: F.conv2d(x, flipped, bias, 1, padding, case.dilation, g)
