"""``python -m convt swap``: a user's model with its layers swapped, compared with what it was."""

import copy
import importlib
import sys

import torch
from torch.utils import _pytree as pytree

from .swap import replace_


class SwapError(Exception):
    """Its message is for the user."""


def build(factory: str):
    """The result of MODULE:FACTORY, called without arguments."""
    module_name, separator, name = factory.partition(":")
    if not separator or not module_name or not name:
        raise SwapError(f"{factory!r} is not of the form MODULE:FACTORY, for example my_project.models:make_generator")
    # As for `python -m`, modules of the current folder can be named.
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        made = importlib.import_module(module_name)
        for part in name.split("."):
            made = getattr(made, part)
    except (ImportError, AttributeError) as error:
        raise SwapError(f"{factory!r}: {error}") from error
    return made() if callable(made) and not isinstance(made, torch.nn.Module) else made


def model_and_inputs(made, shapes: list[list[int]]):
    """A factory gives a model, or a model and its example inputs (a tuple); `shapes` are of random float inputs."""
    if isinstance(made, tuple) and len(made) != 2:
        raise SwapError(f"the factory made a tuple of {len(made)}, not a module or the pair (module, its inputs)")
    model, inputs = made if isinstance(made, tuple) else (made, ())
    if not isinstance(model, torch.nn.Module):
        raise SwapError(
            f"the factory made a {type(model).__name__}, not a torch.nn.Module (or a module and its inputs)"
        )
    inputs = inputs if isinstance(inputs, tuple) else (inputs,)
    if shapes:
        inputs = tuple(torch.randn(shape) for shape in shapes)
    if not inputs:
        raise SwapError("the factory gave no example inputs: name their shapes with --input")
    return model, inputs


def run(model, inputs):
    with torch.no_grad():
        return [t for t in pytree.tree_leaves(model(*inputs)) if isinstance(t, torch.Tensor)]


def milliseconds(model, inputs, repeats: int = 20) -> float:
    """Median GPU time of a forward call, with nothing else in the queue."""
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run(model, inputs)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[repeats // 2]


def relative_error(ours, theirs) -> float:
    """Relative L2 over all floating-point outputs, in float64; inf where they differ in kind."""
    if [(t.shape, t.dtype) for t in ours] != [(t.shape, t.dtype) for t in theirs]:
        return float("inf")
    difference = norm = 0.0
    for a, b in zip(ours, theirs, strict=True):
        if not (b.is_floating_point() or b.is_complex()):
            if not torch.equal(a, b):
                return float("inf")
            continue
        wide = torch.complex128 if b.is_complex() else torch.float64
        difference += (a.to(wide) - b.to(wide)).abs().square().sum().item()
        norm += b.to(wide).abs().square().sum().item()
    return (difference / norm) ** 0.5 if norm > 0 else difference**0.5


def _equal_with_nan(a, b) -> bool:
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())


def tolerance(tensors) -> float:
    """What different orders of summation may change, in a deep model: some hundred roundings of the coarsest dtype."""
    floating = [t for t in tensors if t.is_floating_point() or t.is_complex()]
    coarsest = max((torch.finfo(t.dtype).eps for t in floating), default=0.0)
    tf32 = torch.backends.cudnn.allow_tf32 and any(t.is_cuda and t.dtype == torch.float32 for t in floating)
    return 30 * max(coarsest, 2**-10 if tf32 else 0.0)


def swap_and_compare(factory: str, shapes: list[list[int]], filter_fn=None):
    """Yields lines to print; the last item is whether the outputs agree."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, inputs = model_and_inputs(build(factory), shapes)
    model = model.eval().to(device)
    inputs = pytree.tree_map(lambda t: t.to(device) if isinstance(t, torch.Tensor) else t, inputs)
    swapped = copy.deepcopy(model)
    names = replace_(swapped, filter_fn)
    yield f"{type(model).__name__}: {len(names)} layers swapped" + (": " + ", ".join(names) if names else "")
    torch.manual_seed(0)
    theirs = run(model, inputs)
    torch.manual_seed(0)
    ours = run(swapped, inputs)
    error, limit = relative_error(ours, theirs), tolerance(theirs)
    yield f"outputs on {device}: relative L2 difference {error:.2e}, allowed {limit:.0e}"
    if device.type == "cuda":
        for each in (model, swapped):
            milliseconds(each, inputs, repeats=3)
        before, after = milliseconds(model, inputs), milliseconds(swapped, inputs)
        yield f"forward: {before:.3f} ms with torch, {after:.3f} ms with convt ({before / after:.2f} times as fast)"
    same = error <= limit or all(map(_equal_with_nan, ours, theirs))
    yield bool(names) and same
