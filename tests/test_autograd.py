"""Derivatives of every kind and order, and that only those asked for are computed."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from reference import Problem, poison_allocator, random_tensor
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.utils._python_dispatch import TorchDispatchMode

import convt

PROBLEMS = {
    "plain": Problem(2, 2, 2, (2, 3), (2, 2)),
    "everything": Problem(1, 4, 2, (2, 3), (2, 3), (2, 3), (1, 1), (1, 2), 2, (1, 2)),
    "widening groups": Problem(1, 2, 4, (3, 2), (2, 2), (2, 1), (0, 1), (0, 0), 2, (1, 2)),
    "unreached outputs": Problem(1, 1, 2, (2, 2), (1, 2), (3, 3), (0, 0), (1, 0)),
    "output_padding beyond the stride": Problem(1, 1, 2, (2, 3), (2, 2), (1, 2), (0, 1), (2, 2), 1, (3, 3)),
}


def operands(p, dtype, device, requires_grad=True):
    shapes = p.x_shape, p.w_shape, (p.out_channels,)
    return tuple(random_tensor(s, dtype, device).requires_grad_(requires_grad) for s in shapes)


def functions(p):
    """The three operators as functions of their differentiable operands, with such operands' shapes."""
    return {
        "forward": (
            lambda x, w, b: convt.conv_transpose2d(x, w, b, **p.arguments),
            (p.x_shape, p.w_shape, (p.out_channels,)),
        ),
        "input_grad": (
            lambda y, w: convt.conv_transpose2d_input_grad(y, w, p.size, **p.adjoint_arguments),
            (p.y_shape, p.w_shape),
        ),
        "weight_grad": (
            lambda x, y: convt.conv_transpose2d_weight_grad(x, y, p.kernel, **p.adjoint_arguments),
            (p.x_shape, p.y_shape),
        ),
    }


@pytest.mark.parametrize("role", ("forward", "input_grad", "weight_grad"))
@pytest.mark.parametrize("dtype", (torch.float64, torch.complex128), ids=str)
@pytest.mark.parametrize("name", PROBLEMS)
def test_first_and_second_derivatives(name, dtype, role, device):
    """Reverse mode, forward mode, double backward and forward-over-reverse, against finite differences."""
    function, shapes = functions(PROBLEMS[name])[role]
    inputs = tuple(random_tensor(s, dtype, device).requires_grad_() for s in shapes)
    # A random projection of the Jacobians is compared: enough to find any fault, at a fraction of the time.
    assert gradcheck(function, inputs, fast_mode=True, check_forward_ad=True)
    assert gradgradcheck(function, inputs, fast_mode=True, check_fwd_over_rev=True)


def test_whole_jacobians_and_batched_gradients(device):
    function, shapes = functions(PROBLEMS["everything"])["forward"]
    inputs = tuple(random_tensor(s, torch.float64, device).requires_grad_() for s in shapes)
    assert gradcheck(function, inputs, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True)


def test_an_unbatched_input(device):
    p = PROBLEMS["everything"]
    x, w, b = operands(p, torch.float64, device)
    x = x.detach()[0].requires_grad_()
    function = lambda *a: convt.conv_transpose2d(*a, **p.arguments)  # noqa: E731
    assert gradcheck(function, (x, w, b), fast_mode=True, check_forward_ad=True)
    assert gradgradcheck(function, (x, w, b), fast_mode=True, check_fwd_over_rev=True)


@pytest.mark.parametrize("asked", [m for m in itertools.product((False, True), repeat=3) if any(m)], ids=str)
def test_operands_that_need_no_gradient(asked, device):
    p = PROBLEMS["everything"]
    inputs = [t.requires_grad_(need) for t, need in zip(operands(p, torch.float64, device, False), asked, strict=True)]
    function = lambda *a: convt.conv_transpose2d(*a, **p.arguments)  # noqa: E731
    assert gradcheck(function, inputs, fast_mode=True)
    assert gradgradcheck(function, inputs, fast_mode=True) if any(asked[:2]) else True


class Recorder(TorchDispatchMode):
    """The names of the convt operators that run."""

    def __init__(self):
        super().__init__()
        self.ran = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "convt":
            self.ran.append(func._opname.removeprefix("conv_transpose2d_"))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("asked", list(itertools.product((False, True), repeat=3)), ids=str)
def test_only_the_gradients_asked_for_are_computed(asked, device):
    p = PROBLEMS["plain"]
    wanted = [name for name, need in zip(("input_grad", "weight_grad"), asked, strict=False) if need]

    # Asked for by requires_grad.
    inputs = [t.requires_grad_(need) for t, need in zip(operands(p, torch.float32, device, False), asked, strict=True)]
    y = convt.conv_transpose2d(*inputs, **p.arguments)
    assert y.requires_grad == any(asked)
    if any(asked):
        with Recorder() as recorder:
            y.backward(torch.ones_like(y))
        assert sorted(recorder.ran) == wanted
        assert [t.grad is not None for t in inputs] == list(asked)

    # Asked for by torch.autograd.grad, of a graph that could give all.
    inputs = operands(p, torch.float32, device)
    y = convt.conv_transpose2d(*inputs, **p.arguments)
    if any(asked):
        with Recorder() as recorder:
            torch.autograd.grad(y, [t for t, need in zip(inputs, asked, strict=True) if need], torch.ones_like(y))
        assert sorted(recorder.ran) == wanted


def test_the_second_derivative_computes_only_what_is_asked_for(device):
    p = PROBLEMS["plain"]
    x, w, _ = operands(p, torch.float32, device)
    y = convt.conv_transpose2d(x, w, **p.arguments)
    (dx,) = torch.autograd.grad(y, x, torch.ones_like(y, requires_grad=True), create_graph=True)
    with Recorder() as recorder:
        torch.autograd.grad(dx, w, torch.ones_like(dx))
    assert recorder.ran == ["weight_grad"]


def test_an_operand_that_no_gradient_needs_is_not_kept(device):
    """A frozen weight lets the input go, and the other way round."""
    p = PROBLEMS["plain"]
    x, w, b = operands(p, torch.float32, device, False)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(tuple(t.shape)) or t, lambda t: t):
        convt.conv_transpose2d(x.requires_grad_(), w, b, **p.arguments)
        assert saved == [p.w_shape]
        saved.clear()
        convt.conv_transpose2d(x.detach(), w.requires_grad_(), b, **p.arguments)
        assert saved == [p.x_shape]
        saved.clear()
        convt.conv_transpose2d(x.detach(), w.detach(), b.requires_grad_(), **p.arguments)
        assert saved == []


def test_nothing_is_recorded_without_need(device):
    p = PROBLEMS["plain"]
    x, w, b = operands(p, torch.float32, device)
    assert convt.conv_transpose2d(x.detach(), w.detach(), b.detach(), **p.arguments).grad_fn is None
    with torch.no_grad():
        assert convt.conv_transpose2d(x, w, b, **p.arguments).grad_fn is None
    with torch.inference_mode():
        y = convt.conv_transpose2d(x, w, b, **p.arguments)
        assert y.is_inference()
    torch.testing.assert_close(y.clone(), convt.conv_transpose2d(x, w, b, **p.arguments).detach())


def test_backward_twice(device):
    p = PROBLEMS["plain"]
    x, w, b = operands(p, torch.float64, device)
    y = convt.conv_transpose2d(x, w, b, **p.arguments)
    g = torch.ones_like(y)
    first = torch.autograd.grad(y, (x, w, b), g, retain_graph=True)
    assert all(torch.equal(f, s) for f, s in zip(first, torch.autograd.grad(y, (x, w, b), g), strict=True))
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y, (x, w, b), g)


def test_an_operand_changed_in_place_is_noticed(device):
    p = PROBLEMS["plain"]
    x, w, b = operands(p, torch.float64, device)
    y = convt.conv_transpose2d(x, w, b, **p.arguments)
    with torch.no_grad():
        w.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("tangents", [m for m in itertools.product((False, True), repeat=3) if any(m)], ids=str)
def test_forward_mode(tangents, device):
    p = PROBLEMS["everything"]
    primals = operands(p, torch.float64, device, False)
    directions = operands(p, torch.float64, device, False)
    results = []
    for function in (convt.conv_transpose2d, F.conv_transpose2d):
        with forward_ad.dual_level():
            inputs = [
                forward_ad.make_dual(primal, direction) if dual else primal
                for primal, direction, dual in zip(primals, directions, tangents, strict=True)
            ]
            poison_allocator(p.y_shape, dtype=torch.float64, device=device)
            y, dy = forward_ad.unpack_dual(function(*inputs, **p.arguments))
            results.append((y.clone(), dy.clone()))
    torch.testing.assert_close(*results)


def test_third_derivatives(device):
    """The three operators are closed under differentiation, so there is no last order."""
    p = PROBLEMS["widening groups"]  # without output_padding, for which torch has no third derivative
    results = []
    x, w, _ = operands(p, torch.float64, device)
    for function in (convt.conv_transpose2d, F.conv_transpose2d):
        derivative = function(x, w, **p.arguments).pow(4).sum()
        for _ in range(3):
            (gx, gw) = torch.autograd.grad(derivative, (x, w), create_graph=True)
            derivative = gx.pow(2).sum() + gw.pow(2).sum()
        results.append((gx.detach(), gw.detach()))
    torch.testing.assert_close(*results)


def test_anomaly_mode_and_names(device):
    p = PROBLEMS["plain"]
    x, w, b = operands(p, torch.float32, device)
    with torch.autograd.detect_anomaly(check_nan=True):
        y = convt.conv_transpose2d(x, w, b, **p.arguments)
        assert "ConvTranspose2d" in y.grad_fn.name()
        y.sum().backward()


def test_checkpointing(device):
    from torch.utils.checkpoint import checkpoint

    p = PROBLEMS["everything"]
    x, w, b = operands(p, torch.float64, device)
    call = lambda *a: convt.conv_transpose2d(*a, **p.arguments).square()  # noqa: E731
    plain = torch.autograd.grad(call(x, w, b).sum(), (x, w, b))
    checkpointed = torch.autograd.grad(checkpoint(call, x, w, b, use_reentrant=False).sum(), (x, w, b))
    torch.testing.assert_close(checkpointed, plain, rtol=0, atol=0)
