"""The comparison behind ``python -m convt``: layers, references, the pass rule and timings."""

import contextlib
import dataclasses
import math
import statistics
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from . import _C
from .modules import ConvTranspose2d
from .planning import explain

PRECISIONS = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}
LAYOUTS = {"NCHW": torch.contiguous_format, "NHWC": torch.channels_last}

# A float64 reference is computed for as many batch elements as fit into both; a machine's patience is finite.
REFERENCE_MACS = 4e10
REFERENCE_BYTES = 2**31


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer and the size of its input. Pairs are (height, width); an unbatched input has batch 1 here."""

    name: str
    batch: int
    in_channels: int
    height: int
    width: int
    out_channels: int
    kernel_size: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    output_padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    bias: bool = False
    batched: bool = True
    quick: bool = False
    source: str = ""

    @property
    def input_shape(self) -> tuple[int, ...]:
        shape = (self.batch, self.in_channels, self.height, self.width)
        return shape if self.batched else shape[1:]

    @property
    def output_shape(self) -> tuple[int, int, int, int]:
        axes = zip(
            (self.height, self.width), self.kernel_size, self.stride, self.padding, self.output_padding, self.dilation,
            strict=True,
        )  # fmt: skip
        return (self.batch, self.out_channels, *(_C.output_size(*axis) for axis in axes))

    @property
    def macs(self) -> int:
        """Multiply-accumulates, those whose results fall outside the output included."""
        pixels = self.batch * self.height * self.width
        return pixels * self.in_channels * (self.out_channels // self.groups) * math.prod(self.kernel_size)

    @property
    def products_per_output(self) -> int:
        """The most products that one output adds up."""
        taps = [
            math.ceil(k * math.gcd(s, d) / s)
            for k, s, d in zip(self.kernel_size, self.stride, self.dilation, strict=True)
        ]
        return self.in_channels // self.groups * math.prod(taps)

    @property
    def arguments(self) -> dict:
        """What nn.ConvTranspose2d takes."""
        names = (
            "in_channels", "out_channels", "kernel_size", "stride", "padding", "output_padding", "groups", "bias",
            "dilation",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}

    def reference_elements(self) -> list[int]:
        """The batch elements that are compared with float64: all, or evenly spread ones with the first and the last."""
        bytes_each = 8 * math.prod(self.output_shape[1:])
        count = int(min(REFERENCE_MACS * self.batch // self.macs, REFERENCE_BYTES // max(1, bytes_each)))
        count = max(1, min(self.batch, count))
        return sorted({round(i * (self.batch - 1) / max(1, count - 1)) for i in range(count)})

    def reduced(self, macs: int = 4_000_000) -> "Case":
        """The same kernel, stride, padding, dilation and kind of groups, small enough for a CPU."""
        groups = min(self.groups, 4)
        small = dataclasses.replace(
            self,
            batch=min(self.batch, 2),
            in_channels=groups * min(self.in_channels // self.groups, 12),
            out_channels=groups * min(self.out_channels // self.groups, 8),
            groups=groups,
            height=min(self.height, 10),
            width=min(self.width, 13),
        )
        while small.macs > macs and max(small.height, small.width) > 2:
            small = dataclasses.replace(small, height=min(small.height, 2 + small.height // 2), width=small.width - 1)
        return small


KERNELBENCH = "KernelBench level 1"
# kb75 and kb65 on KernelBench's own sizes; the numbers are its problems'.
_KB69 = Case("kb69", 64, 64, 128, 256, 128, (3, 5), source=f"{KERNELBENCH}, problem 69")
_KB75 = Case(
    "kb75", 16, 32, 128, 256, 64, (3, 5), (2, 3), (1, 2), dilation=(2, 1), groups=4, source=f"{KERNELBENCH}, problem 75"
)
_KB65 = Case("kb65", 8, 64, 512, 512, 64, (3, 7), source=f"{KERNELBENCH}, problem 65")


def _with_bias(case: Case, **changes) -> Case:
    return dataclasses.replace(case, name=f"{case.name}+bias", bias=True, **changes)


TARGETS = [_KB69, _KB75, _with_bias(_KB75), _KB65]

# Layers of published models, one for each kind of problem; `source` is repository@commit:file.
ZOO = [
    Case(
        "liteflownet.upcorr", 1, 49, 112, 256, 49, (4, 4), (2, 2), (1, 1), groups=49, quick=True,
        source="sniklaus/pytorch-liteflownet@e1a4a26cf2:run.py",
    ),
    Case("hinet.up3", 1, 128, 360, 640, 64, (2, 2), (2, 2), bias=True, quick=True, source="HINET"),
]  # fmt: skip
