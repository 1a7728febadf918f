"""What convt would run, and why."""

from . import _C, _extension  # noqa: F401
from .functional import _list

Plan = _C.Plan


def device_names() -> list[str]:
    """The names that :func:`explain` takes as ``device``."""
    return _C.device_names()


def explain(
    input,
    weight,
    bias=None,
    stride=1,
    padding=0,
    output_padding=0,
    groups=1,
    dilation=1,
    *,
    device=None,
    operation="forward",
    input_size=(),
    kernel_size=(),
) -> Plan:
    """The plan of a call: which kernel, which configuration, and why not the others. Nothing is computed.

    Args:
        input, weight, bias, stride, ...: as for :func:`convt.conv_transpose2d`; tensors on the meta device will do.
            For an adjoint, ``input`` and ``weight`` are the first two arguments of its operator
            (:func:`convt.conv_transpose2d_input_grad`, :func:`convt.conv_transpose2d_weight_grad`).
        device: the name of a GPU (see :func:`convt.device_names`), for which no GPU need be present; by default the
            current one.
        operation: "forward", "input_grad" or "weight_grad".
        input_size, kernel_size: (height, width), for the adjoint that computes it.

    Returns:
        A Plan: ``algorithm``, ``configuration``, ``grid``, ``block``, ``workspace_bytes``, ``candidates`` (each with
        ``fits``, ``refusal``, and ``plan``), ``useful_flops``, ``compulsory_bytes``. ``print(plan)``
        shows all of it.

    Raises:
        RuntimeError: as the call itself would.
        ValueError: for an unknown device or operation, or without a GPU if no device is named.
    """
    operations = _C.Operation.__members__
    if operation not in operations:
        raise ValueError(f"unknown operation {operation!r}; known are {', '.join(operations)}")
    size = {"forward": (), "input_grad": input_size, "weight_grad": kernel_size}[operation]
    return _C.explain(
        operations[operation],
        input,
        weight,
        bias,
        _list(size),
        _list(stride),
        _list(padding),
        _list(output_padding),
        groups,
        _list(dilation),
        device,
    )
