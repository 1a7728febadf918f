"""Swapping the layers of a model, in place."""

from torch import nn
from torch.nn.utils import parametrize

from .modules import ConvTranspose2d, LazyConvTranspose2d

_CONVT_OF = {nn.ConvTranspose2d: ConvTranspose2d, nn.LazyConvTranspose2d: LazyConvTranspose2d}
_TORCH_OF = {ours: theirs for theirs, ours in _CONVT_OF.items()}


def _swapped_class(module, classes):
    """The class that `module` is to become, or None."""
    cls = type(module)
    if cls in classes:
        return classes[cls]
    # A parametrized module has a class of its own, derived from the one that it had, with a property for each
    # parametrized tensor.
    if parametrize.is_parametrized(module) and len(cls.__bases__) == 1 and cls.__bases__[0] in classes:
        base = classes[cls.__bases__[0]]
        own = {k: v for k, v in vars(cls).items() if k not in ("__dict__", "__weakref__")}
        return type(f"Parametrized{base.__name__}", (base,), own)
    return None


def _swap(model, classes, filter_fn):
    swapped = []
    for name, module in model.named_modules():
        cls = _swapped_class(module, classes)
        if cls is not None and (filter_fn is None or filter_fn(module, name)):
            # The object stays the same one, and with it its parameters, buffers, hooks, flags, and everything that
            # refers to it: other parents, optimizers, wrappers.
            module.__class__ = cls
            swapped.append(name)
    return swapped


def replace_(model: nn.Module, filter_fn=None) -> list[str]:
    """Makes every ``nn.ConvTranspose2d`` of a model a :class:`convt.ConvTranspose2d`, in place.

    Only modules of exactly that type are replaced (and lazy ones, and parametrized ones of that type), not those of
    classes derived from it. Parameters, buffers, hooks, parametrizations, device, dtype and training flag stay the same
    objects, so an optimizer need not be built again.

    Args:
        model: any module; it may itself be an ``nn.ConvTranspose2d``.
        filter_fn: ``filter_fn(module, name) -> bool`` says whether to replace this one; by default all are.

    Returns:
        The names of the replaced modules, as in ``model.named_modules()`` ("" is the model itself). A module that is
        used in several places is named once.
    """
    return _swap(model, _CONVT_OF, filter_fn)


def restore_(model: nn.Module, filter_fn=None) -> list[str]:
    """Makes every :class:`convt.ConvTranspose2d` of a model an ``nn.ConvTranspose2d``: undoes :func:`replace_`.

    Arguments and result are those of :func:`replace_`.
    """
    return _swap(model, _TORCH_OF, filter_fn)
