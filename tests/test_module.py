"""convt.ConvTranspose2d is nn.ConvTranspose2d to everything but the arithmetic."""

import copy
import inspect
import io
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import convt

CONSTRUCTIONS = (
    ((4, 6, 3), {}),
    ((4, 6, (3, 2)), {"stride": (2, 1), "padding": (1, 0), "output_padding": (1, 0)}),
    ((4, 6, 3, 2, 1, 1, 2, False, 1), {}),
    ((4, 6), {"kernel_size": 3, "groups": 2, "dilation": (2, 3), "bias": False}),
    ((4, 6, 3, 2), {"dtype": torch.float64}),
    ((4, 6, 3, 2, 1, 1, 1, True, 1, "zeros", "cpu", torch.float16), {}),
)


def both(*args, seed=1, **kwargs):
    """torch's layer and convt's, made from the same seed."""
    made = []
    for cls in (nn.ConvTranspose2d, convt.ConvTranspose2d):
        torch.manual_seed(seed)
        made.append(cls(*args, **kwargs))
    return made


def assert_same_state(a, b):
    a, b = a.state_dict(), b.state_dict()
    assert list(a) == list(b)
    for name in a:
        assert a[name].dtype == b[name].dtype
        assert torch.equal(a[name], b[name])


def test_it_is_a_subclass_with_the_same_constructor():
    assert issubclass(convt.ConvTranspose2d, nn.ConvTranspose2d)
    for name in ("__init__", "forward"):
        theirs, ours = (inspect.signature(getattr(c, name)) for c in (nn.ConvTranspose2d, convt.ConvTranspose2d))
        assert list(ours.parameters) == list(theirs.parameters)
        for parameter in theirs.parameters.values():
            assert ours.parameters[parameter.name].default == parameter.default
            assert ours.parameters[parameter.name].kind == parameter.kind
    assert convt.ConvTranspose2d.__constants__ == nn.ConvTranspose2d.__constants__


@pytest.mark.parametrize(("args", "kwargs"), CONSTRUCTIONS, ids=str)
def test_the_same_construction_gives_the_same_layer(args, kwargs):
    theirs, ours = both(*args, **kwargs)
    assert type(ours) is convt.ConvTranspose2d
    assert repr(ours) == repr(theirs)
    assert_same_state(ours, theirs)
    for name in nn.ConvTranspose2d.__constants__:
        assert getattr(ours, name) == getattr(theirs, name)
    # Sums of small integers are exact in any type and in any order.
    for parameter in theirs.parameters():
        parameter.data = torch.randint(-2, 3, parameter.shape).to(parameter)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randint(-2, 3, (2, 4, 5, 6)).to(ours.weight.dtype)
    torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=0)


def test_state_dicts_load_both_ways():
    theirs, ours = both(4, 6, 3)
    for source, target in ((nn.ConvTranspose2d(4, 6, 3), ours), (convt.ConvTranspose2d(4, 6, 3), theirs)):
        assert str(target.load_state_dict(source.state_dict())) == "<All keys matched successfully>"
        assert_same_state(source, target)
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        ours.load_state_dict(nn.ConvTranspose2d(4, 6, 5).state_dict())


def test_copies_and_pickles_are_convt_layers():
    layer = convt.ConvTranspose2d(4, 6, 3, stride=2, padding=1)
    layer.weight.requires_grad_(False)
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    x = torch.randn(2, 4, 5, 6)
    for other in (
        copy.copy(layer),
        copy.deepcopy(layer),
        pickle.loads(pickle.dumps(layer)),
        torch.load(buffer, weights_only=False),
    ):
        assert type(other) is convt.ConvTranspose2d
        assert repr(other) == repr(layer)
        assert not other.weight.requires_grad
        assert_same_state(other, layer)
        assert torch.equal(other(x), layer(x))
    assert copy.deepcopy(layer).weight is not layer.weight


def test_a_checkpoint_without_padding_mode():
    """As torch's __setstate__: layers pickled before padding_mode existed have none."""
    layer = convt.ConvTranspose2d(4, 6, 3)
    state = layer.__dict__.copy()
    del state["padding_mode"]
    old = convt.ConvTranspose2d.__new__(convt.ConvTranspose2d)
    old.__setstate__(state)
    assert old.padding_mode == "zeros"
    x = torch.randn(2, 4, 5, 6)
    assert torch.equal(old(x), layer(x))


def test_output_size():
    theirs, ours = both(4, 6, 3, stride=(2, 3), padding=1)
    x = torch.randn(2, 4, 5, 6)
    for height in (9, 10):
        for width in (16, 17, 18):
            for size in ([height, width], (2, 6, height, width), torch.Size((height, width))):
                y = ours(x, output_size=size)
                assert y.shape == (2, 6, height, width)
                torch.testing.assert_close(y, theirs(x, size))
    for size in ([10, 18], [6, 10, 18]):
        y = ours(x[0], size)
        assert y.shape == (6, 10, 18)
        torch.testing.assert_close(y, theirs(x[0], size))


def test_output_size_replaces_the_constructors_output_padding():
    _, ours = both(4, 6, 3, stride=2, output_padding=1)
    assert ours(torch.randn(1, 4, 5, 5)).shape[2:] == (12, 12)
    assert ours(torch.randn(1, 4, 5, 5), output_size=(11, 11)).shape[2:] == (11, 11)


@pytest.mark.parametrize("size", ([8, 16], [11, 16], [9, 19], [9], [2, 9, 16], [2, 6, 9, 16, 1]), ids=str)
def test_an_output_size_out_of_range_has_torchs_message(size):
    theirs, ours = both(4, 6, 3, stride=(2, 3), padding=1)
    x = torch.randn(2, 4, 5, 6)
    messages = []
    for layer in (theirs, ours):
        with pytest.raises(ValueError, match=r"output_size|output size") as error:
            layer(x, output_size=size)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


def test_padding_modes():
    for mode in ("reflect", "circular", "replicate"):
        for cls in (nn.ConvTranspose2d, convt.ConvTranspose2d):
            with pytest.raises(ValueError, match='Only "zeros" padding mode is supported for ConvTranspose2d'):
                cls(4, 6, 3, padding_mode=mode)
    layer = convt.ConvTranspose2d(4, 6, 3)
    layer.padding_mode = "reflect"
    with pytest.raises(ValueError, match="Only `zeros` padding mode"):
        layer(torch.randn(1, 4, 5, 5))


@pytest.mark.parametrize(
    ("args", "kwargs"),
    (
        ((4, 6, 3), {"groups": 4}),
        ((5, 6, 3), {"groups": 2}),
        ((4, 6, 3), {"groups": 0}),
        ((4, 6), {}),
        ((4, 6, 3), {"kernel": 3}),
    ),
    ids=str,
)
def test_constructor_errors_are_torchs(args, kwargs):
    errors = []
    for cls in (nn.ConvTranspose2d, convt.ConvTranspose2d):
        with pytest.raises((ValueError, TypeError)) as error:
            cls(*args, **kwargs)
        errors.append((error.type, str(error.value)))
    assert errors[0] == errors[1]


def test_a_channels_last_module(device):
    theirs, ours = (layer.to(device).to(memory_format=torch.channels_last) for layer in both(4, 6, 3, stride=2))
    for x in (torch.randn(2, 4, 5, 6, device=device), torch.randn(2, 5, 6, 4, device=device).permute(0, 3, 1, 2)):
        y = ours(x)
        assert y.is_contiguous(memory_format=torch.channels_last)
        expected = theirs(x)
        assert y.stride() == expected.stride()
        torch.testing.assert_close(y, expected, rtol=1e-2, atol=1e-2)  # a GPU's torch may use TF32


def test_it_trains(device):
    torch.backends.cudnn.allow_tf32 = False
    layers = [layer.to(device) for layer in both(4, 6, 3, stride=2, padding=1, output_padding=1)]
    x, target = torch.randn(2, 4, 5, 6, device=device), torch.randn(2, 6, 10, 12, device=device)
    losses = []
    for layer in layers:
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        history = []
        for _ in range(10):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(layer(x), target)
            loss.backward()
            optimizer.step()
            history.append(loss.item())
        losses.append(history)
    assert losses[1][-1] < losses[1][0]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


@pytest.mark.parametrize(
    "wrap",
    (
        nn.utils.parametrizations.weight_norm,
        nn.utils.parametrizations.spectral_norm,
        nn.utils.parametrizations.orthogonal,
        lambda layer: prune.random_unstructured(layer, "weight", amount=0.5),
    ),
    ids=("weight_norm", "spectral_norm", "orthogonal", "pruning"),
)
def test_wrapped_weights(wrap):
    results = []
    for layer in both(4, 6, 3, stride=2):
        torch.manual_seed(2)
        layer = wrap(layer)
        assert isinstance(layer, nn.ConvTranspose2d)
        x = torch.arange(120.0).reshape(1, 4, 5, 6)
        y = layer(x)
        y.square().sum().backward()
        gradients = [p.grad for _, p in sorted(layer.named_parameters())]
        assert all(g is not None for g in gradients)
        results.append((y.detach(), gradients, list(layer.state_dict())))
    assert results[0][2] == results[1][2]
    torch.testing.assert_close(results[1][:2], results[0][:2], rtol=1e-4, atol=1e-2)


def test_skip_init():
    layer = nn.utils.skip_init(convt.ConvTranspose2d, 4, 6, 3, stride=2)
    assert type(layer) is convt.ConvTranspose2d
    nn.init.ones_(layer.weight)
    nn.init.zeros_(layer.bias)
    assert layer(torch.ones(1, 4, 1, 1)).eq(4).all()


def test_hooks_run():
    layer, seen = convt.ConvTranspose2d(4, 6, 3), []
    layer.register_forward_pre_hook(lambda *_: seen.append("before"))
    layer.register_forward_hook(lambda *_: seen.append("after"))
    layer.register_full_backward_hook(lambda *_: seen.append("backward"))
    layer(torch.randn(1, 4, 3, 3, requires_grad=True)).sum().backward()
    assert seen == ["before", "after", "backward"]


def test_on_the_meta_device():
    layer = convt.ConvTranspose2d(4, 6, 3, stride=2, device="meta")
    y = layer(torch.empty(2, 4, 5, 6, device="meta"))
    assert y.shape == (2, 6, 11, 13)
    assert y.is_meta
    layer = layer.to_empty(device="cpu")
    layer.reset_parameters()
    assert layer(torch.randn(2, 4, 5, 6)).isfinite().all()


def test_the_lazy_layer_becomes_a_convt_layer():
    theirs, ours = nn.LazyConvTranspose2d(6, 3, stride=2), convt.LazyConvTranspose2d(6, 3, stride=2)
    assert isinstance(ours, nn.LazyConvTranspose2d)
    assert repr(ours) == repr(theirs)
    x = torch.randn(2, 4, 5, 6)
    results = []
    for layer in (theirs, ours):
        torch.manual_seed(3)
        results.append(layer(x))
    assert type(ours) is convt.ConvTranspose2d
    assert repr(ours) == repr(theirs)
    assert_same_state(ours, theirs)
    torch.testing.assert_close(*results)
    assert not any(nn.parameter.is_lazy(p) for p in ours.parameters())
