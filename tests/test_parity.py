"""The operators on every device: as accurate as torch's, the same strides, the same bits every time."""

import os
import random

import pytest
import torch
import torch.nn.functional as F
from forced import FORMATS, check_every_stream, explained, precise
from reference import (
    COMPLEX,
    MEMORY,
    REAL,
    ROLES,
    Problem,
    Reference,
    assert_parity,
    lay_out,
    poison_allocator,
    random_problem,
    random_tensor,
    reference,
    rule_of_forward,
    tensor_core_of,
    torch_gradients,
    wide,
)

import convt
from convt import _C

# What kinds of layers there are, each as small as shows its kind.
PROBLEMS = {
    "stride 1": Problem(2, 6, 8, (9, 11), (3, 5)),
    "wide kernel": Problem(2, 5, 4, (9, 8), (3, 7)),
    "grouped, strided, dilated": Problem(2, 8, 16, (9, 11), (3, 5), (2, 3), (1, 2), (0, 0), 4, (2, 1)),
    "unreached outputs": Problem(1, 4, 5, (6, 7), (3, 3), (5, 5), (1, 1), (0, 0), 1, (2, 2)),
    "k = s": Problem(2, 8, 4, (5, 6), (2, 2), (2, 2)),
    "k = 2 s": Problem(1, 16, 8, (8, 8), (4, 4), (2, 2), (1, 1)),
    "upsampling by 8": Problem(1, 3, 3, (4, 4), (16, 16), (8, 8), (4, 4)),
    "depthwise": Problem(2, 8, 8, (5, 6), (4, 4), (2, 2), (1, 1), (0, 0), 8),
    "narrowing groups": Problem(2, 12, 4, (4, 5), (3, 3), (2, 2), (1, 1), (1, 1), 4),
    "widening groups": Problem(2, 4, 12, (4, 5), (3, 3), (2, 2), (1, 1), (1, 0), 4),
    "output_padding beyond the stride": Problem(2, 2, 3, (4, 5), (2, 3), (1, 2), (0, 1), (3, 2), 1, (4, 3)),
    "one channel": Problem(3, 1, 1, (7, 6), (3, 3), (2, 2), (1, 1), (1, 1)),
    "1x1": Problem(2, 3, 5, (4, 4), (1, 1)),
    "many channels": Problem(1, 300, 70, (3, 4), (3, 3), (2, 2), (1, 1)),
    "many pixels": Problem(2, 3, 2, (40, 70), (3, 3), (2, 1), (1, 1)),
}


def operands(p, dtype, device, memory=("contiguous",) * 3, bias=True):
    """x, w, the gradient of y, and the bias."""
    tensors = (random_tensor(s, dtype, device) for s in (p.x_shape, p.w_shape, p.y_shape))
    x, w, dy = (lay_out(t, m) for t, m in zip(tensors, memory, strict=True))
    return x, w, dy, random_tensor((p.out_channels,), dtype, device) if bias else None


def compute(p, role, x=None, w=None, dy=None, bias=None):
    like = x if x is not None else dy
    shape = {"forward": p.y_shape, "input_grad": p.x_shape, "weight_grad": p.w_shape}[role]
    poison_allocator(shape, dtype=like.dtype, device=like.device)
    if role == "forward":
        return convt.conv_transpose2d(x, w, bias, **p.arguments)
    if role == "input_grad":
        return convt.conv_transpose2d_input_grad(dy, w, p.size, **p.adjoint_arguments)
    return convt.conv_transpose2d_weight_grad(x, dy, p.kernel, **p.adjoint_arguments)


def torch_results(p, x, w, dy, bias):
    """aten's forward, input and weight gradient; these are linear in each operand: autograd's conjugate is undone."""
    dx, dw = torch_gradients(p, x.conj(), w.conj(), dy)
    return {"forward": F.conv_transpose2d(x, w, bias, **p.arguments), "input_grad": dx, "weight_grad": dw}


def check(p, dtype, device, memory=("contiguous",) * 3, bias=True, roles=ROLES):
    x, w, dy, b = operands(p, dtype, device, memory, bias)
    expected = torch_results(p, x, w, dy, b)
    for role, named in (
        ("forward", {"x": x, "w": w, "bias": b}),
        ("input_grad", {"w": w, "dy": dy}),
        ("weight_grad", {"x": x, "dy": dy}),
    ):
        if role not in roles:
            continue
        result = compute(p, role, **named)
        assert result.dtype == dtype
        tensor_core = tensor_core_of(x, w, **p.arguments) if role == "forward" else None
        if tensor_core is not None:
            rule_of_forward(p, x, w, b, tensor_core)(result)
            continue
        if "dy" in named:
            named["y"] = named.pop("dy")
        assert_parity(result, expected[role], reference(p, role, **named))
    return result


@pytest.mark.gpu
@pytest.mark.skipif(os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING") == "1", reason="there is no cache to poison")
def test_poison_reaches_the_next_tensors():
    for dtype in REAL:
        poison_allocator((3, 5, 7), dtype=dtype)
        assert torch.empty((3, 5, 7), dtype=dtype, device="cuda").isnan().all()


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("dtype", REAL + COMPLEX, ids=str)
@pytest.mark.parametrize("name", PROBLEMS)
def test_every_dtype_and_layout(name, dtype, layout, device):
    memory = ("contiguous" if layout == "nchw" else "channels_last",) * 3
    # With TF32 off a float32 result must be float32-accurate; the CPU has no other way.
    torch.backends.cudnn.allow_tf32 = False
    check(PROBLEMS[name], dtype, device, memory)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_float32_with_tf32_allowed(name, layout):
    torch.backends.cudnn.allow_tf32 = True
    memory = ("contiguous" if layout == "nchw" else "channels_last",) * 3
    check(PROBLEMS[name], torch.float32, "cuda", memory)


# Enough for all of what varies to meet all else that varies, in pairs. cuDNN, to compare with, takes its time for each.
SEEDS = {"cpu": range(200), "cuda": range(100)}


@pytest.mark.parametrize("dtype", (*REAL, torch.complex64), ids=str)
def test_random_problems(dtype, device):
    torch.backends.cudnn.allow_tf32 = False
    for seed in SEEDS[device]:
        rng = random.Random(f"{seed} {dtype}")
        torch.manual_seed(seed)
        p = random_problem(rng)
        memory = tuple(rng.choice(MEMORY) for _ in range(3))
        bias = rng.random() < 0.5
        try:
            check(p, dtype, device, memory, bias)
        except (AssertionError, RuntimeError) as error:
            raise AssertionError(f"seed {seed}: {p}, memory {memory}, bias {bias}: {error}") from error


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", (*REAL, torch.complex64, torch.complex128), ids=str)
# The families of fast kernels take the forward only, and each has a test file of its own.
@pytest.mark.parametrize("configuration", [c for c in _C.configuration_names() if c.startswith(("direct/", "aten/"))])
def test_every_configuration_forced(configuration, dtype):
    torch.backends.cudnn.allow_tf32 = False
    ran = refused = 0
    for p in PROBLEMS.values():
        for memory in ("contiguous", "channels_last"):
            x, w, dy, b = operands(p, dtype, "cuda", (memory,) * 3)
            expected = torch_results(p, x, w, dy, b)
            for role, named in (
                ("forward", {"x": x, "w": w, "bias": b}),
                ("input_grad", {"w": w, "dy": dy}),
                ("weight_grad", {"x": x, "dy": dy}),
            ):
                _C.force_configuration(configuration)
                try:
                    result = compute(p, role, **named)
                except RuntimeError as error:
                    assert configuration in str(error)  # the reason why it does not fit
                    refused += 1
                    continue
                finally:
                    _C.force_configuration("")
                if "dy" in named:
                    named["y"] = named.pop("dy")
                assert_parity(result, expected[role], reference(p, role, **named))
                ran += 1
    assert refused > 0  # each configuration is for some of the operations only
    assert ran > 0 or (dtype.is_complex and configuration.startswith("aten/"))


@pytest.mark.gpu
def test_an_unknown_configuration_cannot_be_forced():
    p = PROBLEMS["k = s"]
    x, w, _, _ = operands(p, torch.float32, "cuda")
    _C.force_configuration("direct/none")
    with pytest.raises(RuntimeError, match="no configuration named direct/none"):
        convt.conv_transpose2d(x, w, **p.arguments)
    _C.force_configuration("")
    convt.conv_transpose2d(x, w, **p.arguments)


@pytest.mark.parametrize("dtype", REAL, ids=str)
@pytest.mark.parametrize("name", ("grouped, strided, dilated", "many channels", "many pixels"))
def test_the_same_bits_every_time(name, dtype, device):
    p = PROBLEMS[name]
    x, w, dy, b = operands(p, dtype, device)
    for role, named in (
        ("forward", {"x": x, "w": w, "bias": b}),
        ("input_grad", {"w": w, "dy": dy}),
        ("weight_grad", {"x": x, "dy": dy}),
    ):
        first = compute(p, role, **named)
        for _ in range(5):
            assert torch.equal(compute(p, role, **named), first)


@pytest.mark.gpu
def test_the_same_bits_at_a_size_that_fills_the_gpu():
    p = Problem(8, 64, 64, (64, 64), (3, 3), (2, 2), (1, 1), (1, 1))
    for dtype in (torch.float16, torch.float32):
        x, w, dy, _ = operands(p, dtype, "cuda")
        for role, named in (
            ("forward", {"x": x, "w": w}),
            ("input_grad", {"w": w, "dy": dy}),
            ("weight_grad", {"x": x, "dy": dy}),
        ):
            first = compute(p, role, **named)
            assert all(torch.equal(compute(p, role, **named), first) for _ in range(3))


STRIDE_PROBLEMS = {
    **PROBLEMS,
    "1x1 image": Problem(2, 3, 4, (1, 1), (1, 1)),
    "1x1 image and one channel": Problem(1, 1, 1, (1, 1), (1, 1)),
    "one row": Problem(2, 1, 3, (1, 5), (1, 3), (1, 2)),
    "one output channel": Problem(2, 4, 1, (3, 5), (3, 3), (2, 2)),
    "one input channel": Problem(2, 1, 4, (3, 5), (3, 3), (2, 2)),
}


@pytest.mark.parametrize("dtype", (torch.float16, torch.float32, torch.float64), ids=str)
@pytest.mark.parametrize("x_format", FORMATS)
@pytest.mark.parametrize("w_format", FORMATS)
@pytest.mark.parametrize("name", STRIDE_PROBLEMS)
def test_strides_are_those_of_aten(name, w_format, x_format, dtype, device):
    p = STRIDE_PROBLEMS[name]
    x, w, dy, b = operands(p, dtype, device)
    x = x.contiguous(memory_format=FORMATS[x_format])
    w = w.contiguous(memory_format=FORMATS[w_format])
    results = []
    for function in (convt.conv_transpose2d, F.conv_transpose2d):
        leaves = [t.detach().requires_grad_() for t in (x, w, b)]
        y = function(*leaves, **p.arguments)
        results.append((y, *torch.autograd.grad(y, leaves, dy)))
    if device == "cuda" and any(q >= s for q, s in zip(p.output_padding, p.stride, strict=True)):
        # There aten leaves cuDNN and with it the memory format; convt gives the same answer as for any other problem.
        channels_last = dtype != torch.float64 and "nhwc" in (w_format, x_format)
        format = torch.channels_last if channels_last else torch.contiguous_format
        assert results[0][0].is_contiguous(memory_format=format)
        return
    assert results[0][0].stride() == results[1][0].stride()
    # Of a gradient the memory format counts: strides of axes of size 1 differ between aten's own kernels.
    ours, theirs = (
        [[stride for size, stride in zip(g.shape, g.stride(), strict=True) if size > 1] for g in rs[1:]]
        for rs in results
    )
    assert ours == theirs
    on_meta = convt.conv_transpose2d(x.to("meta"), w.to("meta"), b.to("meta"), **p.arguments)
    if device == "cpu":  # meta tensors do not know that a GPU's float64 is never channels_last
        assert on_meta.stride() == results[0][0].stride()


@pytest.mark.parametrize("dtype", (*REAL, torch.complex64, torch.complex128), ids=str)
@pytest.mark.parametrize("name", ("grouped, strided, dilated", "k = 2 s", "output_padding beyond the stride"))
def test_gradients_through_autograd(name, dtype, device):
    torch.backends.cudnn.allow_tf32 = False
    p = PROBLEMS[name]
    x, w, dy, b = operands(p, dtype, device)
    both = []
    for function in (convt.conv_transpose2d, F.conv_transpose2d):
        leaves = [t.detach().clone().requires_grad_() for t in (x, w, b)]
        y = function(*leaves, **p.arguments)
        poison_allocator(p.x_shape, p.w_shape, dtype=dtype, device=device)
        y.backward(dy)
        both.append([leaf.grad for leaf in leaves])
    ours, theirs = both
    assert_parity(ours[0], theirs[0], reference(p, "input_grad", y=dy, w=w.conj()))
    assert_parity(ours[1], theirs[1], reference(p, "weight_grad", x=x.conj(), y=dy))
    assert_parity(ours[2], theirs[2], Reference(wide(dy).sum((0, 2, 3)).cpu(), wide(dy).abs().sum((0, 2, 3)).cpu()))


@pytest.mark.parametrize("role", ("input_grad", "weight_grad"))
@pytest.mark.parametrize("layout", FORMATS)
def test_the_memory_format_of_an_adjoint_can_be_asked_for(layout, role, device):
    p = PROBLEMS["k = 2 s"]
    x, w, dy, _ = operands(p, torch.float32, device)
    if role == "input_grad":
        call = lambda **k: convt.conv_transpose2d_input_grad(dy, w, p.size, **p.adjoint_arguments, **k)  # noqa: E731
    else:
        call = lambda **k: convt.conv_transpose2d_weight_grad(x, dy, p.kernel, **p.adjoint_arguments, **k)  # noqa: E731
    result = call(memory_format=FORMATS[layout])
    assert result.is_contiguous(memory_format=FORMATS[layout])
    torch.testing.assert_close(result, call())


DEPTHWISE = Problem(4, 64, 64, (30, 33), (4, 4), (2, 2), (1, 1), (0, 0), 64)
UNALIGNED = Problem(4, 64, 32, (21, 27), (4, 4), (2, 2), (1, 1))  # rows of x begin anywhere
FEW_TILES = Problem(2, 64, 8, (21, 27), (4, 4), (2, 2), (1, 1))
SCATTER = Problem(8, 64, 48, (7, 7), (2, 2), (2, 2))  # images do
# A layer of each family beside the implicit GEMMs of test_implicit_gemm.py, those that copy x among them.
EVERY_FAMILY = {
    "depthwise/any": ("float16", DEPTHWISE, "nchw"),
    "grouped/mma_n8": ("tf32", Problem(4, 32, 32, (33, 40), (3, 5), (2, 2), (1, 2), (0, 0), 4), "nchw"),
    "warp_rows/2x2": ("ieee", Problem(4, 32, 32, (33, 40), (3, 3), (2, 2), (1, 1), (1, 1), 4), "nchw"),
    "rolling_rows/2x2_n16": ("ieee", Problem(4, 48, 3, (40, 41), (4, 4), (2, 2), (1, 1)), "nchw"),
    "column/n32_p96": ("ieee", Problem(2, 48, 4, (40, 41), (3, 3), (1, 1), (1, 1)), "nchw"),
    "few_channels/3x3_n4_r8": ("ieee", Problem(2, 48, 4, (41, 65), (3, 3), (1, 1), (1, 1)), "nchw"),
    "few_channels/3x3_n4_r4": ("float16", Problem(2, 48, 4, (41, 65), (3, 3), (1, 1), (1, 1)), "nhwc"),
    "few_positions/p4": ("float16", Problem(2, 256, 64, (1, 2), (4, 4)), "nchw"),
    "large_stride/tile_64x64": ("tf32", Problem(2, 32, 16, (9, 9), (16, 16), (8, 8), (4, 4)), "nchw"),
    "large_stride_sm90/k96": ("tf32", Problem(2, 21, 5, (9, 9), (32, 32), (16, 16)), "nchw"),
    "gemm_scatter_sm90/128x128_pingpong": ("float16", SCATTER, "nchw"),
    "gemm_scatter_sm90/256x128": ("bfloat16", SCATTER, "nhwc"),
    "gemm_scatter_rows_sm90/128x128": ("float16", Problem(9, 64, 48, (7, 14), (2, 2), (2, 2)), "nchw"),
    "gemm_scatter_tf32_sm90/128x128_pingpong": ("tf32", SCATTER, "nchw"),
    "gemm_fold_sm90/64x128": ("float16", UNALIGNED, "nchw"),
    "gemm_fold_sm90/64x256": ("tf32", UNALIGNED, "nchw"),
    "gemm_fold_sm90/128x128": ("ieee", UNALIGNED, "nchw"),
    "gemm_fold_sm90/64x128_cooperative": ("bfloat16", FEW_TILES, "nchw"),
    "gemm_fold_rows_sm90/k4s2_32x128": ("float16", Problem(4, 64, 32, (21, 136), (4, 4), (2, 2), (1, 1)), "nchw"),
    "implicit_gemm_nchw_sm90/2x32x256": ("float16", UNALIGNED, "nchw"),
    "implicit_gemm_nchw_sm90/subpixel_64x256": ("tf32", UNALIGNED, "nchw"),
    "implicit_gemm_nhwc_sm90/32x256": ("float16", UNALIGNED, "nhwc"),
}


@pytest.mark.parametrize("configuration", EVERY_FAMILY)
def test_layers_for_every_stream_are_taken(configuration):
    precision, p, layout = EVERY_FAMILY[configuration]
    plan = explained(p, precise(precision), FORMATS[layout])
    (candidate,) = [c for c in plan.candidates if f"{c.algorithm}/{c.configuration}" == configuration]
    assert candidate.fits, candidate.refusal


@pytest.mark.gpu
@pytest.mark.parametrize("configuration", EVERY_FAMILY)
def test_the_same_bits_on_every_stream(configuration, request):
    if "_sm90" in configuration:
        request.getfixturevalue("hopper")
    precision, p, layout = EVERY_FAMILY[configuration]
    check_every_stream(configuration, precision, p, FORMATS[layout])
