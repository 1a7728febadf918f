"""The operation by its definition, random problems, and the rule that a result has to pass.

Nothing here is taken from csrc. Per axis, tap t carries input i to output o = i * stride + t * dilation - padding if
that lies in [0, out); w is not flipped:

    y[n, co, o, u] = bias[co] + sum of x[n, ci, i, j] * w[ci, co, t, v]
"""

import dataclasses
import math
import os
import random
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

import convt

REAL = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
COMPLEX = (torch.complex32, torch.complex64, torch.complex128)
ROLES = ("forward", "input_grad", "weight_grad")


@dataclasses.dataclass(frozen=True)
class Problem:
    """Sizes of one transposed convolution; pairs are (height, width)."""

    batch: int
    in_channels: int
    out_channels: int
    size: tuple
    kernel: tuple
    stride: tuple = (1, 1)
    padding: tuple = (0, 0)
    output_padding: tuple = (0, 0)
    groups: int = 1
    dilation: tuple = (1, 1)

    @property
    def x_shape(self):
        return (self.batch, self.in_channels, *self.size)

    @property
    def w_shape(self):
        return (self.in_channels, self.out_channels // self.groups, *self.kernel)

    @property
    def y_shape(self):
        return (self.batch, self.out_channels, *(self.output_size(axis) for axis in (0, 1)))

    @property
    def arguments(self):
        """Keyword arguments of the forward."""
        return {**self.adjoint_arguments, "output_padding": self.output_padding}

    @property
    def adjoint_arguments(self):
        return {"stride": self.stride, "padding": self.padding, "groups": self.groups, "dilation": self.dilation}

    def output_size(self, axis):
        return (
            (self.size[axis] - 1) * self.stride[axis]
            - 2 * self.padding[axis]
            + self.dilation[axis] * (self.kernel[axis] - 1)
            + self.output_padding[axis]
            + 1
        )

    def landings(self, axis, tap):
        """([i, ...], [o, ...]): which inputs this tap carries into the output, and where to."""
        out = self.output_size(axis)
        pairs = [
            (i, i * self.stride[axis] + tap * self.dilation[axis] - self.padding[axis]) for i in range(self.size[axis])
        ]
        pairs = [(i, o) for i, o in pairs if 0 <= o < out]
        return [i for i, _ in pairs], [o for _, o in pairs]


class Reference(NamedTuple):
    """``value`` in float64 or complex128, and ``magnitude``: the sum of the absolute values of the terms added up."""

    value: torch.Tensor
    magnitude: torch.Tensor


def wide(t):
    """The same numbers in float64 or complex128, where every operation exists."""
    return t.to(torch.complex128 if t.is_complex() else torch.float64)


def _array(t):
    """float64, or long double for the dtypes that float64 is no reference for."""
    array = wide(t.detach()).resolve_conj().resolve_neg().cpu().numpy()
    if t.dtype in (torch.float64, torch.complex128):
        return array.astype(np.clongdouble if t.is_complex() else np.longdouble)
    return array


def _by_definition(p, role, x, w, y):
    """The operand of `role` from the other two, arrays with 4 axes; taps add up one by one."""
    g, cin, cout = p.groups, p.in_channels // p.groups, p.out_channels // p.groups
    shapes = {
        "input_grad": (p.batch, g, cin, *p.size),
        "weight_grad": (g, cin, cout, *p.kernel),
        "forward": (p.batch, g, cout, *p.y_shape[2:]),
    }
    given = zip((x, w, y), shapes.values(), strict=True)
    x, w, y = (None if operand is None else operand.reshape(shape) for operand, shape in given)
    result = np.zeros(shapes[role], dtype=(y if x is None else x).dtype)
    for t in range(p.kernel[0]):
        for v in range(p.kernel[1]):
            (i, o), (j, u) = p.landings(0, t), p.landings(1, v)
            if not i or not j:
                continue
            at_x, at_y = (..., *np.ix_(i, j)), (..., *np.ix_(o, u))
            if role == "forward":
                result[at_y] += np.einsum("ngcij,gcd->ngdij", x[at_x], w[..., t, v])
            elif role == "input_grad":
                result[at_x] += np.einsum("ngdij,gcd->ngcij", y[at_y], w[..., t, v])
            else:
                result[..., t, v] += np.einsum("ngcij,ngdij->gcd", x[at_x], y[at_y])
    return result.reshape({"input_grad": p.x_shape, "weight_grad": p.w_shape, "forward": p.y_shape}[role])


def reference(p: Problem, role: str, *, x=None, w=None, y=None, bias=None) -> Reference:
    """What the operator of `role` should give, on the CPU; operands are 4-D, of the dtype under test."""
    operands = [None if t is None else _array(t) for t in (x, w, y)]
    value = _by_definition(p, role, *operands)
    magnitude = _by_definition(p, role, *(None if t is None else np.abs(t) for t in operands))
    if bias is not None:
        value += _array(bias)[:, None, None]
        magnitude += np.abs(_array(bias))[:, None, None]
    value = value.astype(np.complex128 if np.iscomplexobj(value) else np.float64)
    return Reference(torch.from_numpy(value), torch.from_numpy(magnitude.astype(np.float64)))


def _eps(dtype):
    return torch.finfo(dtype).eps if not dtype.is_complex else torch.finfo(dtype.to_real()).eps


def _norm(t):
    return torch.linalg.vector_norm(t).item()


def round_to_tf32(t):
    """float32 to the nearest TF32, ties away from zero: what operands without ties are to kernels that use TF32."""
    return ((t.contiguous().view(torch.int32) + 0x1000) & -0x2000).view(torch.float32)


def assert_parity(result, torch_result, reference: Reference, tensor_core=None):
    """The pass rule: `result` is as accurate as torch's in the same precision, up to an ulp-sized floor.

    - No NaN is left where the reference has none.
    - max|result - reference| <= 2 max|torch - reference| + floor
    - L2 of the error <= 1.25 times that of torch's error + floor
    - The gain (the signed error along the reference; truncation instead of rounding shows here) is no more than twice
      torch's + what n independent errors give by chance.

    The floor, which matters where torch happens to be exact: rounding to the output's dtype is half an ulp, at most
    eps / 2 of the largest |value|. A sum in fp32 (fp64 for fp64) of terms with random signs, rounded at every addition,
    is off by about u = eps / 2 times the sum of the terms' absolute values S, over the square root of two. So

        floor(eps, acc) = eps / 2 * |value| + acc * S,    acc = eps of the accumulator

    which is one ulp of the output in the narrow dtypes, a few in the wide ones. For the maximum |value| and S are their
    maxima, for L2 their norms.

    Args:
        tensor_core: how tensor cores were used for float32. They add up with a few bits more than float32 and truncate.
            "ieee": operands were split into two TF32 parts. The second one is rounded, to 2^-22 of the operand at most,
            and the product of both second parts, 2^-22 of the whole product at most, is left out: acc is 2^-22, a third
            of the worst case. A step's sum is truncated before it is added by an instruction that rounds: the gain may
            be that of a sum truncated once, half an ulp.
            "tf32": the whole sum was made in tensor cores. `reference` is that of operands rounded to TF32; acc is
            2^-19, the gain may be a twentieth of TF32's ulp.
    """
    assert tensor_core in (None, "ieee", "tf32")
    value, magnitude = reference
    dtype = result.dtype
    assert torch_result is None or dtype == torch_result.dtype
    assert tuple(result.shape) == tuple(value.shape)
    if value.numel() == 0:
        return
    got = wide(result.detach()).cpu()
    assert not bool((got.isnan() & ~value.isnan()).any()), "NaN left in the result: elements that were not written?"
    error = got - value
    eps = _eps(dtype)
    acc = torch.finfo(torch.float64 if dtype in (torch.float64, torch.complex128) else torch.float32).eps
    gain_floor = eps / 20
    if tensor_core == "ieee":
        acc, gain_floor = 2**-22, eps / 2
    elif tensor_core == "tf32":
        acc, gain_floor = 2**-19, 2**-10 / 20
    theirs = torch.zeros_like(error) if torch_result is None else wide(torch_result.detach()).cpu() - value

    worst = error.abs().max().item()
    limit = 2 * theirs.abs().max().item() + eps / 2 * value.abs().max().item() + acc * magnitude.max().item()
    assert worst <= limit, f"max error {worst:.3e} > {limit:.3e}; torch's is {theirs.abs().max().item():.3e}"

    l2, l2_limit = _norm(error), 1.25 * _norm(theirs) + eps / 2 * _norm(value) + acc * _norm(magnitude)
    assert l2 <= l2_limit, f"L2 error {l2:.3e} > {l2_limit:.3e}; torch's is {_norm(theirs):.3e}"

    if value.numel() >= 256 and _norm(value) > 0:
        scale = _norm(value) ** 2
        gain = abs((error * value.conj()).sum().item()) / scale
        gain_of_torch = abs((theirs * value.conj()).sum().item()) / scale
        # 4 standard deviations of a sum of n errors of random sign, on top of (usually) a twentieth of an ulp.
        chance = 4 * _norm(error * value) / scale
        limit = 2 * gain_of_torch + chance + gain_floor
        assert gain <= limit, f"signed bias {gain:.3e} of the result > {limit:.3e}; torch's is {gain_of_torch:.3e}"


def tensor_core_of(x, w, **arguments):
    """assert_parity's `tensor_core` for a forward that the planner decides."""
    if x.device.type != "cuda" or x.dtype != torch.float32:
        return None
    algorithm = convt.explain(x, w, **arguments).algorithm
    if algorithm in ("direct", "depthwise", "few_channels", "few_positions", "aten", "empty"):
        return None
    return "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"


def rule_of_forward(p: Problem, x, w, bias, precision):
    """assert_parity for forwards by tensor cores: a function of the result.

    `precision` is "tf32", "ieee" (float32 without TF32), or a dtype's name. The operands that TF32 rounds are rounded
    for torch and the reference, too: cuDNN need not use TF32 where it may.
    """
    if precision == "tf32":
        x, w = round_to_tf32(x), round_to_tf32(w)
    theirs = torch.nn.functional.conv_transpose2d(x, w, bias, **p.arguments)
    expected = reference(p, "forward", x=x, w=w, bias=bias)
    tensor_core = precision if precision in ("tf32", "ieee") else None
    return lambda result: assert_parity(result, theirs, expected, tensor_core)


def random_tensor(shape, dtype, device="cpu", generator=None):
    """Standard normal, rounded to `dtype`. Made on the CPU, so that every device gets the same.

    No float32 is halfway between two TF32: both are nearest, and a GPU's copy engine rounds to the even one, threads to
    the one away from zero.
    """
    wide = torch.complex128 if dtype.is_complex else torch.float64
    values = torch.randn(shape, dtype=wide, generator=generator).to(dtype)
    if dtype == torch.float32:
        bits = values.view(torch.int32)
        bits += (bits & 0x1FFF) == 0x1000
    return values.to(device)


def spoilt_operands(p: Problem, rng: random.Random, x, w, times=1):
    """Copies of x and w with one element that is not finite, and which outputs a tap connects with that element.

    Yields ((x, w), reached, value, where) for NaN and infinity in each operand, `times` of each. The elements are often
    at corners: their neighbours lie outside of the tensor.
    """
    for spoilt in (0, 1):
        for value in (math.nan, math.inf):
            for _ in range(times):
                pair = [x.clone(), w.clone()]
                at = tuple(rng.choice((0, n - 1, rng.randrange(n))) for n in pair[spoilt].shape)
                pair[spoilt][at] = value
                marks = [torch.zeros(t.shape, dtype=torch.float64) for t in pair]
                marks[spoilt][at] = 1
                marks[1 - spoilt] += 1
                reached = reference(p, "forward", x=marks[0], w=marks[1]).value != 0
                yield pair, reached, value, (p, spoilt, value, at)


def problem_count(usual):
    """How many random problems a GPU test takes; CONVT_TEST_PROBLEMS says so where each takes long."""
    return int(os.environ.get("CONVT_TEST_PROBLEMS", usual))


def random_problem(rng: random.Random, most_channels=6, most_size=7, most_kernel=5) -> Problem:
    """A small problem with a non-empty output; every field varies, on both axes by itself."""
    while True:
        groups = rng.choice((1, 1, 2, 3))
        stride, dilation = ((rng.randint(1, 5), rng.randint(1, 5)) for _ in range(2))
        if rng.random() < 0.5:
            dilation = (1, 1)
        p = Problem(
            batch=rng.randint(1, 3),
            in_channels=groups * rng.randint(1, most_channels // groups),
            out_channels=groups * rng.randint(1, most_channels // groups),
            size=(rng.randint(1, most_size), rng.randint(1, most_size)),
            kernel=(rng.randint(1, most_kernel), rng.randint(1, most_kernel)),
            stride=stride,
            padding=(rng.randint(0, 4), rng.randint(0, 4)),
            output_padding=tuple(rng.randrange(max(s, d)) for s, d in zip(stride, dilation, strict=True)),
            groups=groups,
            dilation=dilation,
        )
        if min(p.y_shape) > 0:
            return p


MEMORY = ("contiguous", "channels_last", "permuted", "sliced", "offset", "expanded")


def lay_out(t, memory):
    """`t` in memory of another kind; "expanded" keeps its first slice of axes 1 and 2 only, with strides of 0."""
    if memory == "contiguous":
        return t.contiguous()
    if memory == "channels_last":
        return t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t
    if memory == "permuted":
        order = list(range(t.dim()))[::-1]
        return t.permute(order).contiguous().permute(order)
    if memory == "sliced":
        wide = torch.full([2 * n + 1 for n in t.shape], math.nan, dtype=t.dtype, device=t.device)
        view = wide[tuple(slice(1, 2 * n + 1, 2) for n in t.shape)]
        return view.copy_(t)
    if memory == "offset":
        flat = torch.full((t.numel() + 3,), math.nan, dtype=t.dtype, device=t.device)
        return flat[3:].view(t.shape).copy_(t)
    if memory == "expanded":
        return t[:, :1, :1].expand(t.shape)
    raise ValueError(memory)


def poison_allocator(*shapes, dtype=torch.float32, device="cuda"):
    """Fills the blocks that new CUDA tensors of these shapes will get with NaN (bytes 0xff, in every dtype)."""
    if torch.device(device).type != "cuda":
        return
    blocks = []
    for shape in shapes:
        size = max(1, math.prod(shape)) * dtype.itemsize
        # All blocks that fit best are taken at once, so that none of them stays clean.
        blocks += [torch.full((size,), 255, dtype=torch.uint8, device=device) for _ in range(8)]
    del blocks


def torch_gradients(p: Problem, x, w, dy):
    """aten's gradients by input and weight, for a gradient of the output."""
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    # oneDNN's gradients in half precision are wrong, or crash, where little is left of the padded image.
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(enabled and x.dtype not in (torch.float16, torch.bfloat16))
    try:
        return torch.autograd.grad(F.conv_transpose2d(x, w, None, **p.arguments), (x, w), dy)
    finally:
        torch._C._set_mkldnn_enabled(enabled)
