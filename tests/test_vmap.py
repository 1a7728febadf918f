"""torch.func: vmap over any operands, and the transforms on top of each other, against F.conv_transpose2d."""

import itertools
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, stack_module_state, vjp, vmap
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

import convt

# cin / groups, cout / groups and groups are all different, and both axes.
GEOMETRY = {"stride": (2, 1), "padding": (1, 0), "output_padding": (1, 0), "dilation": (1, 2)}
OPERANDS = "xwb"
SUBSETS = ["".join(s) for n in (1, 2, 3) for s in itertools.combinations(OPERANDS, n)]

each_groups = pytest.mark.parametrize("groups", [1, 3])
each_rank = pytest.mark.parametrize("rank", [3, 4], ids=["unbatched", "batched"])
each_subset = pytest.mark.parametrize("mapped", SUBSETS)


def make(device, groups, rank=4, prefix=None):
    """x, w, b in float64; `prefix`, by operand, the sizes of leading dimensions."""
    shapes = {
        "x": ((2,) if rank == 4 else ()) + (2 * groups, 3, 4),
        "w": (2 * groups, 5, 2, 3),
        "b": (5 * groups,),
    }
    prefix = prefix or {}
    return [torch.randn((*prefix.get(k, ()), *s), device=device, dtype=torch.float64) for k, s in shapes.items()]


def both(groups):
    """The function of (x, w, b) under test, and the expected one."""
    return [
        lambda x, w, b=None, f=f: f(x, w, b, groups=groups, **GEOMETRY)
        for f in (convt.conv_transpose2d, F.conv_transpose2d)
    ]


def assert_same(transformed, groups, args):
    """The transformation of convt's function gives what that of torch's does."""
    ours, theirs = (transformed(f)(*args) for f in both(groups))
    assert_close(ours, theirs)


# vmap


@each_subset
@each_groups
@each_rank
def test_vmap(device, mapped, groups, rank):
    args = make(device, groups, rank, dict.fromkeys(mapped, (3,)))
    dims = [0 if k in mapped else None for k in OPERANDS]
    # The first, an inner and the last place, and a negative one.
    for place in (0, 1, -1):
        moved = [a if d is None else a.movedim(0, place) for a, d in zip(args, dims, strict=True)]
        in_dims = tuple(d if d is None else place for d in dims)
        assert_same(lambda f, in_dims=in_dims: vmap(f, in_dims), groups, moved)


@each_groups
@pytest.mark.parametrize("out_dims", [1, -1])
def test_out_dims(device, groups, out_dims):
    args = make(device, groups, prefix={"x": (3,), "w": (3,)})
    assert_same(lambda f: vmap(f, (0, 0, None), out_dims=out_dims), groups, args)


@pytest.mark.parametrize("mapped", ["x", "w", "xw"])
def test_without_bias(device, mapped):
    x, w, _ = make(device, 3, prefix=dict.fromkeys(mapped, (3,)))
    assert_same(lambda f: vmap(f, tuple(0 if k in mapped else None for k in "xw")), 3, (x, w))


@pytest.mark.parametrize("outer", SUBSETS)
@pytest.mark.parametrize("inner", SUBSETS)
def test_nested(device, outer, inner):
    groups = 2
    prefix = {k: (2,) * (k in outer) + (3,) * (k in inner) for k in OPERANDS}
    args = make(device, groups, prefix=prefix)
    in_dims = [tuple(0 if k in which else None for k in OPERANDS) for which in (inner, outer)]
    assert_same(lambda f: vmap(vmap(f, in_dims[0]), in_dims[1]), groups, args)


@pytest.mark.parametrize("chunk_size", [1, 2, 5])
def test_chunked(device, chunk_size):
    args = make(device, 2, prefix={"x": (5,), "w": (5,)})
    assert_same(lambda f: vmap(f, (0, 0, None), chunk_size=chunk_size), 2, args)


@pytest.mark.parametrize("mapped", ["x", "w", "xw"])
def test_batch_of_one_and_of_none(device, mapped):
    in_dims = tuple(0 if k in mapped else None for k in OPERANDS)
    assert_same(lambda f: vmap(f, in_dims), 2, make(device, 2, prefix=dict.fromkeys(mapped, (1,))))


@pytest.mark.parametrize("mapped", ["x", "w", "xw"])
def test_empty_inner_batch(device, mapped):
    x, w, b = make(device, 2, prefix=dict.fromkeys(mapped, (3,)))
    x = x.narrow(-4, 0, 0)
    assert_same(lambda f: vmap(f, tuple(0 if k in mapped else None for k in OPERANDS)), 2, (x, w, b))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.complex64])
def test_dtypes(device, dtype):
    torch.backends.cudnn.allow_tf32 = False
    args = [a.to(dtype) for a in make(device, 2, prefix={"x": (3,), "w": (3,)})]
    result = vmap(both(2)[0], (0, 0, None))(*args)
    assert result.dtype == dtype
    # One launch for all samples, or one for each: the sums are the same up to their order.
    tolerance = {"rtol": 2e-3, "atol": 2e-3} if dtype == torch.float16 else {}
    assert_close(result, torch.stack([both(2)[0](x, w, args[2]) for x, w in zip(*args[:2], strict=True)]), **tolerance)


class CountCalls(TorchDispatchMode):
    """Counts what arrives below functorch: the calls that compute something."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[func.name()] += 1
        return func(*args, **(kwargs or {}))


@each_subset
def test_one_call_for_all_samples(device, mapped):
    args = make(device, 2, prefix=dict.fromkeys(mapped, (4,)))
    with CountCalls() as calls:
        vmap(both(2)[0], tuple(0 if k in mapped else None for k in OPERANDS))(*args)
    assert calls.counts["convt::conv_transpose2d"] == 1


def test_per_sample_weights_are_groups(device):
    """StyleGAN2's modulated layer, written with vmap and by hand."""
    styles = torch.randn(4, 6, device=device, dtype=torch.float64)
    x = torch.randn(4, 6, 5, 5, device=device, dtype=torch.float64)
    w = torch.randn(6, 3, 3, 3, device=device, dtype=torch.float64)

    def layer(x, style):
        return convt.conv_transpose2d(x, w * style[:, None, None, None], stride=2)

    weights = w * styles[:, :, None, None, None]
    by_hand = F.conv_transpose2d(x.reshape(1, 24, 5, 5), weights.reshape(24, 3, 3, 3), stride=2, groups=4)
    assert_close(vmap(layer)(x, styles), by_hand.reshape(4, 3, 11, 11))


def test_module_ensemble(device):
    def make_module(cls):
        return cls(2, 4, 3, stride=2, groups=2, device=device, dtype=torch.float64)

    models = [make_module(convt.ConvTranspose2d) for _ in range(3)]
    parameters, buffers = stack_module_state(models)
    base = make_module(convt.ConvTranspose2d)
    x = torch.randn(2, 2, 4, 4, device=device, dtype=torch.float64)
    results = vmap(lambda p, b: functional_call(base, (p, b), (x,)))(parameters, buffers)
    assert_close(results, torch.stack([m(x) for m in models]))


@pytest.mark.parametrize("operator", ["input_grad", "weight_grad"])
@pytest.mark.parametrize("mapped", ["a", "b", "ab"])
@pytest.mark.parametrize("groups", [1, 2])
@each_rank
def test_adjoints(device, operator, mapped, groups, rank):
    x, w, _ = make(device, groups, rank)
    y = both(groups)[0](x, w)
    kwargs = {k: GEOMETRY[k] for k in ("stride", "padding", "dilation")} | {"groups": groups}
    size, a, b = ((3, 4), y, w) if operator == "input_grad" else ((2, 3), x, y)
    function = getattr(convt, f"conv_transpose2d_{operator}")
    args = [torch.stack([t, -t, t * t], -1) if k in mapped else t for k, t in (("a", a), ("b", b))]
    in_dims = tuple(-1 if k in mapped else None for k in "ab")
    result = vmap(lambda a, b: function(a, b, size, **kwargs), in_dims)(*args)
    samples = [[t[..., i] if k in mapped else t for k, t in zip("ab", args, strict=True)] for i in range(3)]
    assert_close(result, torch.stack([function(*s, size, **kwargs) for s in samples]))


# Transforms, alone and on top of each other


def scalar(f):
    return lambda *args: f(*args).pow(3).sum()


TRANSFORMS = {
    "grad": lambda f: grad(scalar(f), argnums=(0, 1, 2)),
    "vjp": lambda f: lambda *a: vjp(f, *a)[1](torch.ones_like(f(*a))),
    "jvp": lambda f: lambda *a: jvp(f, a, tuple(t.cos() for t in a)),
    "jvp of weight alone": lambda f: lambda x, w, b: jvp(lambda w: f(x, w, b), (w,), (w.cos(),)),
    "jacrev": lambda f: jacrev(f, argnums=(0, 1, 2)),
    "jacfwd": lambda f: jacfwd(f, argnums=(0, 1, 2)),
    "hessian": lambda f: hessian(scalar(f), argnums=(0, 1, 2)),
    "jacrev of jacrev": lambda f: jacrev(jacrev(scalar(f), argnums=1), argnums=(0, 1)),
    "jacfwd of jacfwd": lambda f: jacfwd(jacfwd(scalar(f), argnums=1), argnums=(0, 1)),
    "jacrev of jacfwd": lambda f: jacrev(jacfwd(scalar(f), argnums=0), argnums=(1, 2)),
    "grad of grad": lambda f: grad(lambda *a: grad(scalar(f), argnums=1)(*a).pow(2).sum(), argnums=(0, 1)),
    "jvp of grad": lambda f: lambda *a: jvp(grad(scalar(f), argnums=(0, 1)), a, tuple(t.cos() for t in a)),
    "jvp of jvp": lambda f: lambda *a: jvp(lambda *b: jvp(f, b, b)[1], a, tuple(t.cos() for t in a)),
}


@each_rank
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms(device, transform, rank):
    assert_same(TRANSFORMS[transform], 2, [t * 0.3 for t in make(device, 2, rank)])


@pytest.mark.parametrize("mapped", ["x", "w", "xw", "xwb"])
@pytest.mark.parametrize("transform", ["grad", "vjp", "jvp", "grad of grad", "jvp of grad", "jvp of jvp"])
def test_vmap_of_transforms(device, transform, mapped):
    args = [t * 0.3 for t in make(device, 2, prefix=dict.fromkeys(mapped, (3,)))]
    in_dims = tuple(0 if k in mapped else None for k in OPERANDS)
    assert_same(lambda f: vmap(TRANSFORMS[transform](f), in_dims), 2, args)


@pytest.mark.parametrize("transform", ["grad", "jvp", "jacrev", "jacfwd"])
def test_transforms_of_vmap(device, transform):
    args = [t * 0.3 for t in make(device, 2, rank=3, prefix={"x": (2,), "w": (2,)})]
    assert_same(lambda f: TRANSFORMS[transform](vmap(f, (0, 0, None))), 2, args)


# The older interfaces of torch.autograd


@pytest.mark.parametrize("create_graph", [False, True])
def test_is_grads_batched(device, create_graph):
    args = [t.requires_grad_() for t in make(device, 3)]
    grads = []
    for f in both(3):
        y = f(*args)
        torch.manual_seed(0)
        grad_outputs = torch.randn(4, *y.shape, device=device, dtype=y.dtype)
        grads.append(torch.autograd.grad(y, args, grad_outputs, is_grads_batched=True, create_graph=create_graph))
    assert_close(*grads)
    if create_graph:
        second = [torch.autograd.grad(sum(g.pow(2).sum() for g in gs), args, allow_unused=True) for gs in grads]
        assert_close(*second)


@pytest.mark.parametrize(
    ("vectorize", "strategy"), [(True, "reverse-mode"), (True, "forward-mode"), (False, "reverse-mode")]
)
def test_autograd_functional_jacobian(device, vectorize, strategy):
    args = tuple(make(device, 2))
    ours, theirs = (
        torch.autograd.functional.jacobian(f, args, vectorize=vectorize, strategy=strategy) for f in both(2)
    )
    assert_close(ours, theirs)


def test_autograd_functional_hessian(device):
    args = tuple(t * 0.3 for t in make(device, 2, rank=3))
    assert_close(*(torch.autograd.functional.hessian(scalar(f), args) for f in both(2)))
