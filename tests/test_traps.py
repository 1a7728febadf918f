"""Where transposed convolutions go wrong."""

import itertools
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from reference import (
    COMPLEX,
    MEMORY,
    REAL,
    Problem,
    assert_parity,
    lay_out,
    poison_allocator,
    random_tensor,
    reference,
    tensor_core_of,
    wide,
)

import convt


def test_outputs_that_no_tap_reaches_equal_the_bias(device):
    """k < s: between the images of the inputs there is nothing but the bias, to the bit."""
    for dtype in REAL + COMPLEX:
        p = Problem(2, 3, 4, (3, 4), (2, 1), (4, 3), (0, 0), (3, 2))
        x, w, b = (random_tensor(s, dtype, device) for s in (p.x_shape, p.w_shape, (4,)))
        poison_allocator(p.y_shape, dtype=dtype, device=device)
        y = convt.conv_transpose2d(x, w, b, **p.arguments)
        rows = [o for o in range(y.shape[2]) if o % 4 >= 2]
        columns = [o for o in range(y.shape[3]) if o % 3 >= 1]
        for unreached in (y[:, :, rows], y[:, :, :, columns]):
            assert unreached.numel() > 0
            assert torch.equal(wide(unreached), wide(b)[:, None, None].expand(unreached.shape))
        zero = wide(convt.conv_transpose2d(x, w, None, **p.arguments))
        assert not zero[:, :, rows].any()
        assert not zero[:, :, :, columns].any()


def test_dilation_and_stride_with_a_common_divisor_leave_outputs_unreached(device):
    """Stride 5 and dilation 2 reach all phases but by different taps; stride 4 and dilation 2 reach the even ones."""
    x, w = torch.ones(1, 1, 5, 5, device=device), torch.ones(1, 1, 3, 3, device=device)
    b = torch.full((1,), 7.0, device=device)
    y = convt.conv_transpose2d(x, w, b, stride=4, dilation=2)
    odd = torch.arange(y.shape[2], device=device) % 2 == 1
    assert (y[:, :, odd] == 7).all()
    assert (y[:, :, :, odd] == 7).all()
    assert (y[:, :, ~odd][..., ~odd] > 7).all()


def test_a_one_hot_input_reproduces_the_kernel_unflipped(device):
    for dtype in REAL + COMPLEX:
        w = random_tensor((2, 3, 4, 3), dtype, device)
        for stride, dilation, padding in itertools.product((1, 2, 3), (1, 2), (0, 1)):
            x = torch.zeros(1, 2, 3, 3, dtype=dtype, device=device)
            x[0, 1, 1, 1] = 1
            y = wide(convt.conv_transpose2d(x, w, stride=stride, dilation=dilation, padding=padding))
            first = stride - padding
            rows = [first + dilation * t for t in range(4)]
            columns = [first + dilation * t for t in range(3)]
            assert torch.equal(y[0][:, rows][:, :, columns], wide(w[1]))
            assert torch.count_nonzero(y) == torch.count_nonzero(wide(w[1]))


def test_output_padding_changes_the_size_only(device):
    x, w, b = (random_tensor(s, torch.float32, device) for s in ((2, 3, 4, 5), (3, 2, 3, 3), (2,)))
    base = convt.conv_transpose2d(x, w, b, stride=3, padding=1)
    for extra in itertools.product(range(3), range(3)):
        y = convt.conv_transpose2d(x, w, b, stride=3, padding=1, output_padding=extra)
        height, width = base.shape[2:]
        assert y.shape[2:] == (height + extra[0], width + extra[1])
        assert torch.equal(y[:, :, :height, :width], base)


def test_output_padding_uncovers_what_padding_cut(device):
    """Beyond the unpadded size lie real products, not the bias."""
    x, w = torch.ones(1, 1, 2, 2, device=device), torch.ones(1, 1, 2, 2, device=device)
    whole = convt.conv_transpose2d(x, w, stride=2)
    cut = convt.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1)
    assert torch.equal(cut, whole[:, :, 1:, 1:])


def test_dilation_in_size_and_map(device):
    x, w = (random_tensor(s, torch.float64, device) for s in ((1, 2, 3, 4), (2, 3, 2, 3)))
    spread = w.new_zeros(2, 3, 4, 5)
    spread[:, :, ::3, ::2] = w
    for stride in (1, 2, 3):
        dilated = convt.conv_transpose2d(x, w, stride=stride, dilation=(3, 2))
        assert dilated.shape[2:] == ((3 - 1) * stride + 4, (4 - 1) * stride + 5)
        torch.testing.assert_close(dilated, convt.conv_transpose2d(x, spread, stride=stride))


def test_groups_are_independent(device):
    for cin, cout in ((2, 3), (3, 1), (1, 4)):
        x, w = (
            random_tensor((2, 3 * cin, 4, 5), torch.float64, device),
            random_tensor((3 * cin, cout, 3, 2), torch.float64, device),
        )
        y = convt.conv_transpose2d(x, w, stride=2, groups=3)
        parts = [convt.conv_transpose2d(*pair, stride=2) for pair in zip(x.chunk(3, 1), w.chunk(3), strict=True)]
        torch.testing.assert_close(y, torch.cat(parts, 1))


def test_operands_with_stride_0(device):
    """Small integers, so that every sum is exact."""
    p = Problem(2, 4, 6, (4, 5), (3, 2), (2, 1), (1, 0), (1, 0), 2)
    for dtype in REAL:
        x = torch.full((), 3, dtype=dtype, device=device).expand(p.x_shape)
        w = torch.full((), 2, dtype=dtype, device=device).expand(p.w_shape)
        dy = torch.full((), 1, dtype=dtype, device=device).expand(p.y_shape)
        b = torch.full((), 5, dtype=dtype, device=device).expand(6)
        y = convt.conv_transpose2d(x, w, b, **p.arguments)
        dx = convt.conv_transpose2d_input_grad(dy, w, p.size, **p.adjoint_arguments)
        dw = convt.conv_transpose2d_weight_grad(x, dy, p.kernel, **p.adjoint_arguments)
        assert torch.equal(y.double().cpu(), reference(p, "forward", x=x, w=w, bias=b).value)
        assert torch.equal(dx.double().cpu(), reference(p, "input_grad", y=dy, w=w).value)
        assert torch.equal(dw.double().cpu(), reference(p, "weight_grad", x=x, y=dy).value)


def test_the_gradient_of_a_sum(device):
    """Its gradient of the output is one number with strides of 0."""
    x = random_tensor((2, 3, 4, 5), torch.float32, device).requires_grad_()
    w = random_tensor((3, 2, 3, 3), torch.float32, device).requires_grad_()
    ours = torch.autograd.grad(convt.conv_transpose2d(x, w, stride=2).sum(), (x, w))
    theirs = torch.autograd.grad(F.conv_transpose2d(x, w, stride=2).sum(), (x, w))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("memory", MEMORY)
def test_memory_of_any_kind(memory, device):
    torch.backends.cudnn.allow_tf32 = False
    p = Problem(2, 4, 6, (4, 5), (3, 2), (2, 1), (1, 0), (1, 0), 2)
    for dtype in (torch.float16, torch.float32, torch.complex64):
        x, w = (lay_out(random_tensor(s, dtype, device), memory) for s in (p.x_shape, p.w_shape))
        b = random_tensor((18,), dtype, device)[::3]
        y = convt.conv_transpose2d(x, w, b, **p.arguments)
        expected = F.conv_transpose2d(x.contiguous(), w.contiguous(), b.contiguous(), **p.arguments)
        assert_parity(y, expected, reference(p, "forward", x=x, w=w, bias=b), tensor_core_of(x, w, **p.arguments))


def test_overlapping_reads(device):
    """Rows that share elements, as a sliding window gives."""
    flat = random_tensor((40,), torch.float64, device)
    x = flat.as_strided((2, 3, 4, 5), (3, 2, 1, 1))
    w = flat.as_strided((3, 2, 3, 3), (1, 2, 3, 4))
    torch.testing.assert_close(
        convt.conv_transpose2d(x, w, stride=2), F.conv_transpose2d(x.contiguous(), w.contiguous(), stride=2)
    )


@pytest.mark.parametrize("dtype", REAL + COMPLEX, ids=str)
def test_bias_in_every_dtype(dtype, device):
    torch.backends.cudnn.allow_tf32 = False
    p = Problem(2, 3, 4, (3, 4), (3, 3), (2, 2))
    x, w, b = (random_tensor(s, dtype, device) for s in (p.x_shape, p.w_shape, (4,)))
    for bias in (b, None, torch.zeros_like(b)):
        y = convt.conv_transpose2d(x, w, bias, **p.arguments)
        theirs, exact = F.conv_transpose2d(x, w, bias, **p.arguments), reference(p, "forward", x=x, w=w, bias=bias)
        assert_parity(y, theirs, exact, tensor_core_of(x, w, **p.arguments))
    without, with_zero = (convt.conv_transpose2d(x, w, bias, **p.arguments) for bias in (None, torch.zeros_like(b)))
    assert torch.equal(wide(without), wide(with_zero))


def test_unbatched(device):
    x, w, b = (random_tensor(s, torch.float32, device) for s in ((3, 4, 5), (3, 2, 3, 3), (2,)))
    for image in (
        x,
        x.permute(0, 2, 1).contiguous().permute(0, 2, 1),
        x.permute(1, 2, 0).contiguous().permute(2, 0, 1),
    ):
        y = convt.conv_transpose2d(image, w, b, stride=2)
        theirs = F.conv_transpose2d(image, w, b, stride=2)
        assert y.shape == theirs.shape == (2, 9, 11)
        assert y.stride() == theirs.stride()
        assert torch.equal(y, convt.conv_transpose2d(image[None], w, b, stride=2)[0])
    dy = random_tensor((2, 9, 11), torch.float32, device)
    gradients = []
    for function in (convt.conv_transpose2d, F.conv_transpose2d):
        leaves = [t.clone().requires_grad_() for t in (x, w, b)]
        gradients.append(torch.autograd.grad(function(*leaves, stride=2), leaves, dy))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-3)  # cuDNN may use TF32
    assert [g.shape for g in gradients[0]] == [x.shape, w.shape, b.shape]


@pytest.mark.parametrize("dtype", REAL + COMPLEX, ids=str)
def test_an_empty_batch(dtype, device):
    x = torch.empty(0, 3, 4, 5, dtype=dtype, device=device, requires_grad=True)
    w, b = (random_tensor(s, dtype, device).requires_grad_() for s in ((3, 2, 3, 3), (2,)))
    y = convt.conv_transpose2d(x, w, b, stride=2)
    assert y.shape == (0, 2, 9, 11)
    poison_allocator(w.shape, dtype=dtype, device=device)
    dx, dw, db = torch.autograd.grad(y, (x, w, b), torch.empty_like(y))
    assert dx.shape == x.shape
    assert dw.shape == w.shape
    assert not wide(dw).any()
    assert not wide(db).any()


@pytest.mark.parametrize("groups", (1, 2))
def test_no_output_channels(groups, device):
    x = torch.randn(2, 4, 4, 5, device=device, requires_grad=True)
    w = torch.empty(4, 0, 3, 3, device=device, requires_grad=True)
    b = torch.empty(0, device=device)
    for bias in (None, b):
        y = convt.conv_transpose2d(x, w, bias, stride=2, groups=groups)
        assert y.shape == (2, 0, 9, 11)
    poison_allocator(x.shape, device=device)
    dx, dw = torch.autograd.grad(y, (x, w), torch.empty_like(y))
    assert dx.shape == x.shape
    assert not dx.any()
    assert dw.shape == w.shape


def test_an_output_of_size_0(device):
    x = torch.randn(2, 3, 2, 5, device=device, requires_grad=True)
    w = torch.randn(3, 4, 1, 3, device=device, requires_grad=True)
    y = convt.conv_transpose2d(x, w, padding=(1, 0))
    assert y.shape == (2, 4, 0, 7)
    poison_allocator(x.shape, w.shape, device=device)
    for g, operand in zip(torch.autograd.grad(y, (x, w), torch.empty_like(y)), (x, w), strict=True):
        assert g.shape == operand.shape
        assert not g.any()


CONNECTIONS = (
    Problem(1, 2, 2, (5, 6), (3, 3), (2, 2), (1, 1), (1, 1)),
    Problem(1, 2, 2, (5, 6), (2, 2), (3, 3)),
    Problem(1, 2, 2, (4, 4), (3, 3), (3, 2), (2, 2), (0, 0), 1, (2, 3)),
    Problem(1, 2, 4, (5, 6), (3, 3), (1, 1), (0, 0), (0, 0), 2),
)
by_connection = pytest.mark.parametrize(
    "p", CONNECTIONS, ids=lambda p: f"k{p.kernel} s{p.stride} p{p.padding} d{p.dilation} g{p.groups}"
)
by_value = pytest.mark.parametrize("value", (float("inf"), float("nan")))


def marked(t, position, value):
    """`t` with one element replaced, and a tensor of zeros with a one there."""
    one_hot = torch.zeros_like(t)
    one_hot[position] = 1
    return torch.where(one_hot == 1, value, t), one_hot


def assert_touched(result, p, role, **named):
    """A result is infinite or NaN exactly if, by the definition, a tap carries the marked element to it."""
    assert torch.equal(~result.isfinite().cpu(), reference(p, role, **named).value != 0)


@by_value
@by_connection
def test_inf_and_nan_reach_only_the_outputs_that_a_tap_connects(p, value, device):
    x, w = (torch.rand(s, device=device) + 0.5 for s in (p.x_shape, p.w_shape))
    for position in ((0, 1, 2, 2), (0, 0, 0, 0), (0, 1, 3, 1)):
        bad, one_hot = marked(x, position, value)
        assert_touched(convt.conv_transpose2d(bad, w, **p.arguments), p, "forward", x=one_hot, w=w)
    bad, one_hot = marked(w, (1, 0, 1, 1), value)
    assert_touched(convt.conv_transpose2d(x, bad, **p.arguments), p, "forward", x=x, w=one_hot)


@by_value
@by_connection
def test_inf_and_nan_reach_only_the_gradients_that_a_tap_connects(p, value, device, request):
    if device == "cpu" and p.padding != (0, 0):
        reason = "the CPU's gradients are ATen's, which multiplies the zeros of its padding"
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True))
    x, w, dy = (torch.rand(s, device=device) + 0.5 for s in (p.x_shape, p.w_shape, p.y_shape))
    for position in ((0, 1, 2, 2), (0, 0, 0, 0), (0, 1, 3, 1)):
        bad, one_hot = marked(x, position, value)
        dw = convt.conv_transpose2d_weight_grad(bad, dy, p.kernel, **p.adjoint_arguments)
        assert_touched(dw, p, "weight_grad", x=one_hot, y=dy)
        bad, one_hot = marked(dy, position, value)
        dx = convt.conv_transpose2d_input_grad(bad, w, p.size, **p.adjoint_arguments)
        assert_touched(dx, p, "input_grad", y=one_hot, w=w)
        dw = convt.conv_transpose2d_weight_grad(x, bad, p.kernel, **p.adjoint_arguments)
        assert_touched(dw, p, "weight_grad", x=x, y=one_hot)


def test_the_conjugate_bit(device):
    p = Problem(2, 2, 3, (3, 4), (3, 2), (2, 2))
    for dtype in (torch.complex64, torch.complex128):
        x, w, dy, b = (random_tensor(s, dtype, device) for s in (p.x_shape, p.w_shape, p.y_shape, (3,)))
        assert x.conj().is_conj()
        views = [t.conj() for t in (x, w, b)]
        plain = [t.conj().resolve_conj() for t in (x, w, b)]
        for used in itertools.product((0, 1), repeat=3):
            mixed = [(views if u else plain)[i] for i, u in enumerate(used)]
            y = convt.conv_transpose2d(*mixed, **p.arguments)
            assert torch.equal(y, convt.conv_transpose2d(*plain, **p.arguments))
            assert not y.is_conj()
        dx = convt.conv_transpose2d_input_grad(dy.conj(), views[1], p.size, **p.adjoint_arguments)
        assert torch.equal(dx, convt.conv_transpose2d_input_grad(
            dy.conj().resolve_conj(), plain[1], p.size, **p.adjoint_arguments
        ))  # fmt: skip
        dw = convt.conv_transpose2d_weight_grad(views[0], dy.conj(), p.kernel, **p.adjoint_arguments)
        assert torch.equal(dw, convt.conv_transpose2d_weight_grad(
            plain[0], dy.conj().resolve_conj(), p.kernel, **p.adjoint_arguments
        ))  # fmt: skip


def test_the_negative_bit(device):
    p = Problem(2, 2, 3, (3, 4), (3, 2), (2, 2))
    shapes = p.x_shape, p.w_shape, p.y_shape, (3,)
    negative = [torch.imag(random_tensor(s, torch.complex64, device).conj()) for s in shapes]
    assert all(t.is_neg() for t in negative)
    results = []
    for x, w, dy, b in (negative, [t.resolve_neg().contiguous() for t in negative]):
        y = convt.conv_transpose2d(x, w, b, **p.arguments)
        dx = convt.conv_transpose2d_input_grad(dy, w, p.size, **p.adjoint_arguments)
        dw = convt.conv_transpose2d_weight_grad(x, dy, p.kernel, **p.adjoint_arguments)
        results.append((y, dx, dw))
    # Equal but for the order of the sums, which follows the memory format on a CPU.
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", ((70000, 1), (1, 70000), (300, 300)), ids=str)
def test_batch_times_channels_beyond_65535(shape, device):
    batch, channels = shape
    x = random_tensor((batch, channels, 2, 2), torch.float32, device)
    w = random_tensor((channels, 1, 2, 2), torch.float32, device)
    y = convt.conv_transpose2d(x, w, stride=2, groups=channels)
    expected = torch.einsum("ncij,ctv->ncitjv", x, w[:, 0]).reshape(batch, channels, 4, 4)
    assert torch.equal(y, expected)
    # float32 sums over the batch differ in order
    dw = convt.conv_transpose2d_weight_grad(x, y, 2, stride=2, groups=channels)
    wanted = torch.einsum("ncij,ncitjv->ctv", x.double(), y.double().reshape(batch, channels, 2, 2, 2, 2))
    torch.testing.assert_close(dw[:, 0].double(), wanted, rtol=1e-3, atol=1e-2)


HALF_GRADIENT = """
import convt, torch
for dtype in (torch.float16, torch.bfloat16):
    for _ in range(50):
        x = torch.randn(2, 6, 3, 2, dtype=dtype, requires_grad=True)
        w = torch.randn(6, 3, 1, 1, dtype=dtype)
        y = convt.conv_transpose2d(x, w, stride=5, padding=3, output_padding=(4, 2), dilation=3)
        y.sum().backward()
"""


def test_half_precision_gradients_on_a_cpu_where_onednn_crashes():
    """oneDNN's half-precision gradients crash where little is left of the padded image; so does torch there."""
    # In a process of its own: a crash would take the other tests along.
    done = subprocess.run([sys.executable, "-c", HALF_GRADIENT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


ONE_TAP_GRADIENT = """
import torch, convt
torch.set_num_threads(1)
for _ in range(50):
    x, w = torch.randn(2, 4, 5, 6).to(memory_format=torch.channels_last), torch.randn(4, 3, 1, 1)
    dy = torch.randn(2, 3, 10, 12)
    dw = convt.conv_transpose2d_weight_grad(x, dy, (1, 1), 2)
    expected = torch.einsum("ncij,ndij->cd", x.double(), dy[:, :, ::2, ::2].double())
    torch.testing.assert_close(dw[:, :, 0, 0].double(), expected, rtol=1e-5, atol=1e-5)
"""


def test_the_weight_gradient_of_one_tap_on_a_cpu_where_onednn_crashes():
    """Without AVX-512, oneDNN writes beyond its memory for channels_last and one thread; so does torch there."""
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run([sys.executable, "-c", ONE_TAP_GRADIENT], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


def slow_pair(device):
    """A problem, and enough work to keep a stream busy while the other one is asked."""
    x, w = torch.randn(4, 32, 64, 64, device=device), torch.randn(32, 32, 3, 3, device=device)
    return x, w


@pytest.mark.gpu
def test_a_second_stream():
    """The kernels run on the current stream: they see what was queued there before, without a synchronisation."""
    x, w = slow_pair("cuda")

    def all_three(x):
        y = convt.conv_transpose2d(x, w, stride=2)
        dx = convt.conv_transpose2d_input_grad(y, w, (64, 64), stride=2)
        return y, dx, convt.conv_transpose2d_weight_grad(x, y, (3, 3), stride=2)

    wanted = all_three(x)
    late = torch.full_like(x, float("nan"))
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        all_three(late)  # modules are loaded and memory is allocated now, which may synchronise
        stream.synchronize()
        torch.cuda._sleep(500_000_000)
        late.copy_(x)
        results = all_three(late)
        assert not stream.query(), "the calls waited for the stream"
    stream.synchronize()
    assert all(torch.equal(got, want) for got, want in zip(results, wanted, strict=True))


@pytest.mark.gpu
def test_a_second_device():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    x, w = slow_pair("cuda:1")
    assert torch.cuda.current_device() == 0
    leaves = x.requires_grad_(), w.requires_grad_()
    y = convt.conv_transpose2d(*leaves, stride=2)
    gradients = torch.autograd.grad(y, leaves, torch.ones_like(y))
    assert torch.cuda.current_device() == 0
    assert all(t.device == torch.device("cuda:1") for t in (y, *gradients))
    torch.testing.assert_close(y, F.conv_transpose2d(x, w, stride=2), rtol=1e-2, atol=1e-1)
    assert torch.equal(y.cpu(), convt.conv_transpose2d(x.to("cuda:0"), w.to("cuda:0"), stride=2).cpu())


def check_slices(y, x, w, arguments, wanted_at):
    """Crops of a result too large to check whole, against the same crop of the image computed by itself.

    For stride s, kernel k <= 2 s and no padding, output row o depends on input rows o // s - 1 and o // s.
    """
    s = arguments["stride"]
    for n, row, column in wanted_at:
        top, left = max(row // s - 1, 0), max(column // s - 1, 0)
        crop = x[n : n + 1, :, top : row // s + 3, left : column // s + 3]
        small = F.conv_transpose2d(crop.double(), w.double(), **arguments)
        r, c = row - top * s, column - left * s
        size = 2
        got = y[n, :, row : row + size, column : column + size].double()
        torch.testing.assert_close(got, small[0, :, r : r + size, c : c + size], rtol=2e-3, atol=2e-3)


@pytest.mark.large(gib=40)
@pytest.mark.parametrize("format", (torch.contiguous_format, torch.channels_last), ids=str)
def test_an_output_of_more_than_2_to_the_31_elements(format):
    n, channels, height, width = 2, 4, 8192, 8448
    x = torch.randn(n, 4, height, width, dtype=torch.float16, device="cuda").contiguous(memory_format=format)
    w = torch.randn(4, channels, 2, 2, dtype=torch.float16, device="cuda")
    y = convt.conv_transpose2d(x, w, stride=2)
    assert y.numel() > 2**31
    assert y.is_contiguous(memory_format=format)
    corners = itertools.product((0, n - 1), (0, 2 * height - 2, height), (0, 2 * width - 2, width + 1))
    check_slices(y, x, w, {"stride": 2}, corners)
    # Every element is a sum of four products of its pixel: the whole, by chunks that index little.
    for image in range(n):
        for top in range(0, height, 1024):
            rows = y[image, :, 2 * top : 2 * (top + 1024)]
            expected = torch.einsum("cij,cdtv->ditjv", x[image, :, top : top + 1024].float(), w.float())
            error = (rows.float() - expected.reshape(rows.shape)).abs().amax()
            assert error < 0.02
    dx = convt.conv_transpose2d_input_grad(y, w, (height, width), stride=2)
    for image, row, column in ((0, 0, 0), (n - 1, height - 1, width - 1), (n - 1, 5000, 17)):
        patch = y[image, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
        expected = torch.einsum("dtv,cdtv->c", patch.double(), w.double())
        torch.testing.assert_close(dx[image, :, row, column].double(), expected, rtol=2e-3, atol=2e-2)


@pytest.mark.large(gib=40)
@pytest.mark.parametrize("format", (torch.contiguous_format, torch.channels_last), ids=str)
def test_an_input_whose_offsets_exceed_2_to_the_31(format):
    """A slice of a huge tensor: few elements, the last of them far away."""
    whole = torch.zeros(3, 8, 12288, 12288, dtype=torch.float16, device="cuda").contiguous(memory_format=format)
    x = whole[:, :, ::4096, ::4096]
    x.copy_(torch.randn(x.shape, device="cuda"))
    assert max((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)) > 2**31
    w = torch.randn(8, 4, 3, 3, dtype=torch.float16, device="cuda")
    dense = x.contiguous()
    y = convt.conv_transpose2d(x, w, stride=2)
    assert torch.equal(y, convt.conv_transpose2d(dense, w, stride=2))
    dw = convt.conv_transpose2d_weight_grad(x, y, (3, 3), stride=2)
    torch.testing.assert_close(dw, convt.conv_transpose2d_weight_grad(dense, y, (3, 3), stride=2))
    wide_dy = torch.zeros(3, 4, 2**14, 2**14, dtype=torch.float16, device="cuda").contiguous(memory_format=format)
    dy = wide_dy[:, :, :: 2**14 // 7, :: 2**14 // 7][:, :, :7, :7]
    dy.copy_(y)
    assert torch.equal(
        convt.conv_transpose2d_input_grad(dy, w, (3, 3), stride=2),
        convt.conv_transpose2d_input_grad(dy.contiguous(), w, (3, 3), stride=2),
    )
