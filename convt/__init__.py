"""A drop-in ``torch.nn.ConvTranspose2d`` with CUDA kernels of its own.

>>> import torch, convt
>>> up = convt.ConvTranspose2d(64, 32, kernel_size=2, stride=2)
>>> up(torch.randn(1, 64, 16, 16)).shape
torch.Size([1, 32, 32, 32])

The operators are ``torch.ops.convt.conv_transpose2d``, ``conv_transpose2d_input_grad`` and
``conv_transpose2d_weight_grad``.
"""

from ._extension import build_info
from .functional import conv_transpose2d, conv_transpose2d_input_grad, conv_transpose2d_weight_grad
from .modules import ConvTranspose2d, LazyConvTranspose2d
from .planning import Plan, device_names, explain
from .swap import replace_, restore_

__version__ = build_info()["version"]

__all__ = [
    "ConvTranspose2d",
    "LazyConvTranspose2d",
    "Plan",
    "build_info",
    "conv_transpose2d",
    "conv_transpose2d_input_grad",
    "conv_transpose2d_weight_grad",
    "device_names",
    "explain",
    "replace_",
    "restore_",
]
