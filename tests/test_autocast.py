"""torch.autocast, against what it does to F.conv_transpose2d."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import convt

KWARGS = {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2}
LOW = [torch.float16, torch.bfloat16]
each_low = pytest.mark.parametrize("low", LOW)


def make(device, *dtypes):
    """Small integers, but for what a cast to 16 bits takes away: every sum of what was cast is exact in any type and in
    any order, and what was not cast, where it should be, does not give integers."""
    shapes = (2, 4, 5, 6), (4, 3, 3, 3), (6,)
    integers = torch.tensor([-2, -1, 1, 2], dtype=torch.float64)
    wide = [integers[torch.randint(4, shape)] * (1 + 2**-14) for shape in shapes]
    return [t.to(device, dtype) for t, dtype in zip(wide, dtypes, strict=True)]


def run(function, tensors, *autocast, **options):
    """Output and gradients; the backward runs outside of autocast, as it should."""
    leaves = [t.detach().requires_grad_() for t in tensors]
    with torch.autocast(*autocast, **options):
        y = function(*leaves, **KWARGS)
    grad_output = torch.randint(-1, 2, y.shape).to(y)
    return [y.detach(), *torch.autograd.grad(y, leaves, grad_output)]


def assert_same_as_torch(tensors, *autocast, **options):
    results = []
    for function in (convt.conv_transpose2d, F.conv_transpose2d):
        torch.manual_seed(0)
        results.append(run(function, tensors, *autocast, **options))
    ours, theirs = results
    assert [t.dtype for t in ours] == [t.dtype for t in theirs]
    assert [t.stride() for t in ours] == [t.stride() for t in theirs]
    for a, b in zip(ours, theirs, strict=True):
        assert_close(a, b, rtol=0, atol=0)
    return ours


@each_low
def test_float32_is_cast(device, low):
    y, *grads = assert_same_as_torch(make(device, *[torch.float32] * 3), device, dtype=low)
    assert y.dtype == low
    assert [g.dtype for g in grads] == [torch.float32] * 3


def test_default_dtype(device):
    y, *_ = assert_same_as_torch(make(device, *[torch.float32] * 3), device)
    assert y.dtype == torch.get_autocast_dtype(device)


@each_low
def test_float64_is_untouched(device, low):
    y, *grads = assert_same_as_torch(make(device, *[torch.float64] * 3), device, dtype=low)
    assert {t.dtype for t in (y, *grads)} == {torch.float64}


@each_low
def test_complex_is_untouched(device, low):
    tensors = make(device, *[torch.complex64] * 3)
    with torch.autocast(device, dtype=low):
        y = convt.conv_transpose2d(*tensors, **KWARGS)
    assert_close(y, convt.conv_transpose2d(*tensors, **KWARGS), rtol=0, atol=0)


@each_low
@pytest.mark.parametrize(
    "dtypes",
    [
        (torch.float16, torch.float32, torch.float32),
        (torch.bfloat16, torch.float32, torch.float32),
        (torch.float32, torch.bfloat16, torch.float16),
        (torch.float16, torch.float16, torch.float16),
        (torch.bfloat16, torch.bfloat16, torch.float32),
    ],
    ids=str,
)
def test_mixed_dtypes(device, low, dtypes):
    y, *grads = assert_same_as_torch(make(device, *dtypes), device, dtype=low)
    assert y.dtype == low
    assert tuple(g.dtype for g in grads) == dtypes


@each_low
def test_mixed_with_float64_is_refused_as_in_torch(device, low):
    tensors = make(device, torch.float32, torch.float64, torch.float32)
    for function in (F.conv_transpose2d, convt.conv_transpose2d):
        with torch.autocast(device, dtype=low), pytest.raises(RuntimeError):
            function(*tensors, **KWARGS)


@each_low
def test_without_bias_and_unbatched(device, low):
    x, w, _ = make(device, *[torch.float32] * 3)
    with torch.autocast(device, dtype=low):
        ours, theirs = (f(x[0], w, **KWARGS) for f in (convt.conv_transpose2d, F.conv_transpose2d))
    assert ours.dtype == low
    assert_close(ours, theirs, rtol=0, atol=2 * torch.finfo(low).eps * theirs.abs().max().item())


def test_disabled_inside(device):
    tensors = make(device, *[torch.float32] * 3)
    with torch.autocast(device, dtype=torch.bfloat16), torch.autocast(device, enabled=False):
        y = convt.conv_transpose2d(*tensors, **KWARGS)
    assert y.dtype == torch.float32


@pytest.mark.gpu
def test_of_another_device_type_does_nothing():
    tensors = make("cuda", *[torch.float32] * 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert convt.conv_transpose2d(*tensors, **KWARGS).dtype == torch.float32


@each_low
def test_module(device, low):
    modules = []
    for cls in (torch.nn.ConvTranspose2d, convt.ConvTranspose2d):
        torch.manual_seed(0)
        modules.append(cls(4, 6, 3, stride=2, device=device))
    x = torch.randn(2, 4, 5, 5, device=device)
    with torch.autocast(device, dtype=low):
        theirs, ours = (m(x) for m in modules)
        losses = [y.float().pow(2).mean() for y in (theirs, ours)]
    for loss in losses:
        loss.backward()
    assert ours.dtype == theirs.dtype == low
    assert_close(ours, theirs, rtol=0, atol=2 * torch.finfo(low).eps * theirs.abs().max().item())
    for name, p in modules[1].named_parameters():
        assert p.grad.dtype == torch.float32
        eps = 2 * torch.finfo(low).eps
        assert_close(p.grad, modules[0].get_parameter(name).grad, rtol=eps, atol=eps)


def test_cast_of_the_weight_is_cached(device):
    """A parameter used twice is cast once, as for torch's own layers."""
    module = convt.ConvTranspose2d(4, 4, 3, padding=1, device=device)
    x = torch.randn(1, 4, 5, 5, device=device)
    with torch.profiler.profile() as profile, torch.autocast(device, dtype=torch.bfloat16):
        module(module(x))
    casts = sum(e.count for e in profile.key_averages() if e.key == "aten::_to_copy")
    # Input, weight and bias; a CPU computes either layer in float32: three casts, and one back.
    assert casts == 3 + (2 * 4 if device == "cpu" else 0)


@pytest.mark.gpu
def test_gradient_scaling_step():
    """One training step of mixed precision moves the parameters as torch's layer does."""
    results = []
    for cls in (torch.nn.ConvTranspose2d, convt.ConvTranspose2d):
        torch.manual_seed(0)
        module = cls(4, 6, 3, stride=2, device="cuda")
        optimizer, scaler = torch.optim.SGD(module.parameters(), 0.1), torch.amp.GradScaler("cuda")
        x = torch.randn(2, 4, 5, 5, device="cuda")
        with torch.autocast("cuda", dtype=torch.float16):
            loss = module(x).float().pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        results.append([p.detach() for p in module.parameters()])
    assert_close(*results, rtol=1e-3, atol=1e-4)


@each_low
def test_compiled(device, low):
    tensors = make(device, *[torch.float32] * 3)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def function(*tensors):
        with torch.autocast(device, dtype=low):
            return convt.conv_transpose2d(*tensors, **KWARGS)

    with torch.autocast(device, dtype=low):
        eager = convt.conv_transpose2d(*tensors, **KWARGS)
    assert_close(function(*tensors), eager, rtol=0, atol=0)
