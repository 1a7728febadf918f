"""convt.replace_ and restore_: what a user's model keeps; the lazy module; python -m convt swap."""

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.testing import assert_close

import convt
from convt.__main__ import main


class Subclass(nn.ConvTranspose2d):
    """A user's own layer, which may do something else."""


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(6, 4, 3, stride=2, padding=1, output_padding=1, groups=2)
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(self.up(x))


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.ConvTranspose2d(3, 6, 2, stride=2), Block(), nn.Conv2d(4, 4, 3), nn.ConvTranspose2d(4, 1, 3, bias=False)
    )


NAMES = ["0", "1.up", "3"]


def image(*shape):
    return torch.randn(shape or (2, 3, 5, 6), generator=torch.Generator().manual_seed(1))


def types(model):
    return {name: type(m) for name, m in model.named_modules()}


class Called(torch.utils._python_dispatch.TorchDispatchMode):
    """Whether an operator of convt was called."""

    def __init__(self):
        super().__init__()
        self.convt = self.aten = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.convt += func.namespace == "convt"
        self.aten += func is torch.ops.aten.convolution.default and bool(args[6])
        return func(*args, **(kwargs or {}))


def calls(model, *args):
    """(calls of convt, calls of aten's transposed convolution)"""
    with Called() as called, torch.no_grad():
        model(*args)
    return called.convt, called.aten


# The whole of it


def test_replace_and_restore():
    model, x = make_model(), image()
    before, expected = types(model), model(x)
    assert convt.replace_(model) == NAMES
    assert calls(model, x) == (3, 0)
    assert [n for n, t in types(model).items() if t is convt.ConvTranspose2d] == NAMES
    assert {n: t for n, t in types(model).items() if n not in NAMES} == {
        n: t for n, t in before.items() if n not in NAMES
    }
    assert_close(model(x), expected)
    assert convt.replace_(model) == []
    assert convt.restore_(model) == NAMES
    assert types(model) == before
    assert calls(model, x) == (0, 3)
    assert convt.restore_(model) == []


def test_root_is_the_layer():
    layer = nn.ConvTranspose2d(3, 2, 3)
    assert convt.replace_(layer) == [""]
    assert type(layer) is convt.ConvTranspose2d
    assert convt.restore_(layer) == [""]
    assert type(layer) is nn.ConvTranspose2d


def test_nothing_to_replace():
    assert (
        convt.replace_(nn.Sequential(nn.Conv2d(1, 1, 1), nn.ConvTranspose1d(1, 1, 1), nn.ConvTranspose3d(1, 1, 1)))
        == []
    )


def test_filter():
    model, seen = make_model(), []

    def second_only(module, name):
        seen.append((type(module), name))
        return name == "1.up"

    assert convt.replace_(model, filter_fn=second_only) == ["1.up"]
    assert seen == [(nn.ConvTranspose2d, name) for name in NAMES]
    assert calls(model, image()) == (1, 2)
    assert convt.replace_(model, lambda module, name: module.groups == 1) == ["0", "3"]


def test_subclasses_are_untouched():
    model = nn.Sequential(Subclass(3, 3, 3), nn.ConvTranspose2d(3, 3, 3))
    assert convt.replace_(model) == ["1"]
    assert type(model[0]) is Subclass


def test_a_shared_layer_stays_shared():
    layer = nn.ConvTranspose2d(3, 3, 3, padding=1)
    model = nn.ModuleDict({"a": layer, "b": nn.Sequential(nn.ReLU(), layer)})
    model.forward = lambda x: model["b"](model["a"](x))
    expected = model(image())
    assert convt.replace_(model) == ["a"]  # named once, by its first name
    assert model["a"] is model["b"][1]
    assert type(model["a"]) is convt.ConvTranspose2d
    assert_close(model(image()), expected)
    assert convt.restore_(model) == ["a"]
    assert type(model["b"][1]) is nn.ConvTranspose2d


def test_a_layer_held_in_a_list_of_the_users_is_the_swapped_one():
    model = make_model()
    taps = [model[0], model[1].up]
    convt.replace_(model)
    assert calls(nn.Sequential(*taps), image()) == (2, 0)


# What is kept


def test_parameters_are_the_same_objects():
    model = make_model()
    model[0].weight.requires_grad_(False)
    model[3].register_buffer("extra", torch.ones(1))
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    state = {k: v.clone() for k, v in model.state_dict().items()}
    for swap in (convt.replace_, convt.restore_):
        swap(model)
        assert {k: id(p) for k, p in model.named_parameters()} == {k: id(p) for k, p in parameters.items()}
        assert {k: id(b) for k, b in model.named_buffers()} == {k: id(b) for k, b in buffers.items()}
        assert not model[0].weight.requires_grad
        assert_close(model.state_dict(), state, rtol=0, atol=0)
        assert list(model.state_dict()) == list(state)


def test_training_flags_attributes_and_dtype_are_kept():
    model = make_model().double()
    model[0].eval()
    model[0].note = "mine"
    described = repr(model)
    convt.replace_(model)
    assert [model[0].training, model[1].up.training] == [False, True]
    assert model[0].note == "mine"
    assert model[0].weight.dtype == torch.float64
    assert repr(model) == described


def test_hooks_are_kept():
    model, log = make_model(), []
    layer = model[1].up
    layer.register_forward_pre_hook(lambda m, args: log.append("pre"))
    handle = layer.register_forward_hook(lambda m, args, y: log.append("forward"))
    layer.register_full_backward_hook(lambda m, gi, go: log.append("backward"))
    layer.register_state_dict_post_hook(lambda *a: log.append("state_dict"))
    layer.weight.register_hook(lambda g: log.append("tensor"))
    layer.weight.register_post_accumulate_grad_hook(lambda p: log.append("accumulated"))
    convt.replace_(model)
    model(image()).sum().backward()
    model.state_dict()
    assert sorted(log) == sorted(["pre", "forward", "backward", "tensor", "accumulated", "state_dict"])
    handle.remove()
    log.clear()
    model(image())
    assert log == ["pre"]


def test_the_optimizer_goes_on():
    """Two steps with momentum, a swap between them: the parameters move as without it."""
    results = []
    for swap in (lambda model: None, convt.replace_):
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        for step in range(3):
            if step == 1:
                swap(model)
            optimizer.zero_grad()
            model(image()).pow(2).mean().backward()
            optimizer.step()
        results.append(list(model.parameters()))
    assert_close(*results)


def test_a_compiled_model_takes_the_swap():
    model, x = make_model(), image()
    compiled = torch.compile(model, backend="eager")
    expected = compiled(x)
    names = convt.replace_(compiled)
    assert len(names) == 3
    assert calls(model, x) == (3, 0)
    assert_close(compiled(x), expected)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
def test_a_swapped_model_can_be_copied(copied):
    model = make_model()
    convt.replace_(model)
    twin = copied(model)
    assert types(twin) == types(model)
    assert_close(twin(image()), model(image()))


def test_checkpoints_go_both_ways(tmp_path):
    model, x = make_model(), image()
    expected = model(x)
    torch.save(model.state_dict(), tmp_path / "checkpoint.pt")
    swapped = make_model().requires_grad_(False)
    for p in swapped.parameters():
        p.zero_()
    convt.replace_(swapped)
    swapped.load_state_dict(torch.load(tmp_path / "checkpoint.pt"))
    assert_close(swapped(x), expected)
    fresh = make_model()
    fresh.load_state_dict(swapped.state_dict())
    assert_close(fresh(x), expected)


def test_unpickled_from_before_the_swap(tmp_path):
    """A whole pickled model of torch's layers still loads as such, and can be swapped then."""
    torch.save(make_model(), tmp_path / "model.pt")
    model = torch.load(tmp_path / "model.pt", weights_only=False)
    assert convt.replace_(model) == NAMES


# Reparametrized layers


def old_weight_norm(m):
    with pytest.warns(FutureWarning):
        return nn.utils.weight_norm(m)


REPARAMETRIZED = {
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
    "old weight_norm": old_weight_norm,
    "old spectral_norm": nn.utils.spectral_norm,
    "pruned": lambda m: prune.random_unstructured(m, "weight", 0.5),
    "weight and bias": lambda m: parametrizations.weight_norm(parametrizations.weight_norm(m), "bias"),
}


def train_two_steps(model, x):
    outputs = []
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        y = model(x)
        optimizer.zero_grad()
        y.pow(2).mean().backward()
        optimizer.step()
        outputs.append(y.detach())
    model.eval()
    return outputs, model(x), model.state_dict()


@pytest.mark.parametrize("kind", REPARAMETRIZED)
def test_reparametrized(kind):
    """Swapped before or after, trained: the same outputs and state; and it can be restored."""
    results = []
    for order in ("never", "after", "before", "there and back"):
        torch.manual_seed(0)
        layer = nn.ConvTranspose2d(4, 4, 3, stride=2)
        with torch.no_grad():
            layer.bias.abs_().add_(1)
        model = nn.Sequential(layer)
        if order == "before":
            assert convt.replace_(model) == ["0"]
        torch.manual_seed(0)
        REPARAMETRIZED[kind](layer)
        if order in ("after", "there and back"):
            state = list(model.state_dict())
            assert convt.replace_(model) == ["0"]
            assert list(model.state_dict()) == state
        if order == "there and back":
            assert convt.restore_(model) == ["0"]
        assert model[0] is layer
        assert isinstance(layer, convt.ConvTranspose2d) == (order in ("after", "before"))
        x = image(2, 4, 5, 6)
        results.append(train_two_steps(model, x))
        assert calls(model, x) == ((1, 0) if order in ("after", "before") else (0, 1))
    for other in results[1:]:
        assert_close(other, results[0])


def test_parametrizations_can_be_removed_after_the_swap():
    layer = parametrizations.weight_norm(nn.ConvTranspose2d(4, 4, 3))
    model = nn.Sequential(layer)
    expected = model(image(2, 4, 5, 6))
    convt.replace_(model)
    parametrize.remove_parametrizations(layer, "weight")
    assert type(layer) is convt.ConvTranspose2d
    assert_close(model(image(2, 4, 5, 6)), expected)
    assert convt.restore_(model) == ["0"]
    assert type(layer) is nn.ConvTranspose2d


def test_a_parametrized_layer_copies_and_is_told_from_a_parametrized_subclass():
    model = nn.Sequential(
        parametrizations.weight_norm(nn.ConvTranspose2d(4, 4, 3)), parametrizations.weight_norm(Subclass(4, 4, 3))
    )
    convt.replace_(model)
    twin = copy.deepcopy(model)
    assert [isinstance(m, convt.ConvTranspose2d) for m in twin] == [True, False]
    assert_close(twin(image(2, 4, 5, 6)), model(image(2, 4, 5, 6)))
    # The copy has parameters of its own.
    twin[0].parametrizations.weight.original1.data.zero_()
    assert model[0].weight.abs().sum() > 0


# Lazy modules


def test_lazy_module():
    results = []
    for cls in (nn.LazyConvTranspose2d, convt.LazyConvTranspose2d):
        torch.manual_seed(0)
        module = cls(6, 3, stride=2, groups=2)
        assert module.has_uninitialized_params()
        results.append(module(image(2, 4, 5, 6)))
    assert type(module) is convt.ConvTranspose2d
    assert not module._forward_pre_hooks
    assert module.in_channels == 4
    assert_close(*results)


def test_lazy_module_loads_a_checkpoint():
    trained = nn.ConvTranspose2d(4, 6, 3)
    lazy = convt.LazyConvTranspose2d(6, 3)
    lazy.load_state_dict(trained.state_dict())
    assert_close(lazy(image(2, 4, 5, 6)), trained(image(2, 4, 5, 6)))
    assert type(lazy) is convt.ConvTranspose2d


def test_lazy_layers_are_replaced():
    model = nn.Sequential(nn.LazyConvTranspose2d(6, 3), nn.LazyConvTranspose2d(4, 3))
    assert convt.replace_(model) == ["0", "1"]
    torch.manual_seed(0)
    y = model(image())
    assert [type(m) for m in model] == [convt.ConvTranspose2d] * 2
    assert convt.restore_(model) == ["0", "1"]
    assert [type(m) for m in model] == [nn.ConvTranspose2d] * 2
    assert_close(model(image()), y)


def test_lazy_layers_can_be_restored_before_their_first_input():
    model = nn.Sequential(nn.LazyConvTranspose2d(6, 3))
    convt.replace_(model)
    assert convt.restore_(model) == ["0"]
    model(image())
    assert type(model[0]) is nn.ConvTranspose2d


# The command


FACTORIES = """
import torch
from torch import nn

def generator():
    return nn.Sequential(nn.ConvTranspose2d(8, 4, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(4, 3, 4, 2, 1), nn.Tanh())

def with_inputs():
    return generator(), (torch.randn(2, 8, 5, 5),)

def plain():
    return nn.Conv2d(8, 4, 3)

def not_a_model():
    return 3

def not_a_pair():
    return generator(), torch.randn(2, 8, 5, 5), None

class Wrong(nn.ConvTranspose2d):
    calls = 0
    def forward(self, x):
        Wrong.calls += 1
        return super().forward(x) * Wrong.calls

def unsteady():
    return nn.Sequential(nn.ConvTranspose2d(8, 4, 3), Wrong(4, 4, 3))
"""


@pytest.fixture
def users_folder(tmp_path, monkeypatch):
    (tmp_path / "users_models.py").write_text(FACTORIES)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("users_models", None)


@pytest.mark.parametrize(
    "arguments",
    [["users_models:generator", "--input", "2,8,5,5"], ["users_models:with_inputs"]],
    ids=["shape", "inputs"],
)
def test_command(users_folder, capsys, arguments):
    assert main(["swap", *arguments]) == 0
    printed = capsys.readouterr().out
    assert "2 layers swapped: 0, 2" in printed
    assert ("ms with convt" in printed) == torch.cuda.is_available()


def test_command_finds_modules_of_the_current_folder(users_folder):
    path = os.pathsep.join([str(Path(convt.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "convt", "swap", "users_models:with_inputs"],
        cwd=users_folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["users_models:plain", "--input", "2,8,5,5"], 1),  # nothing to swap
        (["users_models:unsteady", "--input", "2,8,5,5"], 1),  # other outputs each time
        (["users_models:generator"], 2),  # no inputs
        (["users_models:not_a_model"], 2),
        (["users_models:not_a_pair"], 2),
        (["users_models:absent"], 2),
        (["absent_module:generator"], 2),
        (["users_models"], 2),
        (["users_models:generator", "--input", "two"], 2),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else str(value),
)
def test_command_says_no(users_folder, capsys, arguments, code):
    if code == 1:
        assert main(["swap", *arguments]) == 1
        return
    with pytest.raises(SystemExit) as stopped:
        main(["swap", *arguments])
    assert stopped.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("python -m convt swap: ")
