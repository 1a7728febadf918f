"""The comparison behind ``python -m convt``: layers, float64 references, the pass rule, timings."""

import contextlib
import dataclasses
import functools
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

# The float64 reference covers as many batch elements as fit into both.
REFERENCE_MACS = 4e10
REFERENCE_BYTES = 2**31


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer and the size of its input. Pairs are (height, width); an input that is not batched has batch 1 here."""

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
    quick: bool = False  # part of --quick
    source: str = ""

    @property
    def input_shape(self) -> tuple[int, ...]:
        shape = (self.batch, self.in_channels, self.height, self.width)
        return shape if self.batched else shape[1:]

    @property
    def output_size(self) -> tuple[int, int]:
        axes = zip(
            (self.height, self.width), self.kernel_size, self.stride, self.padding, self.output_padding, self.dilation,
            strict=True,
        )  # fmt: skip
        height, width = (_C.output_size(*axis) for axis in axes)
        return height, width

    @property
    def macs(self) -> int:
        """Multiply-accumulates, those that fall outside the output included."""
        pixels = self.batch * self.height * self.width
        return pixels * self.in_channels * (self.out_channels // self.groups) * math.prod(self.kernel_size)

    @property
    def products(self) -> int:
        """The most products that one output adds up."""
        taps = (
            math.ceil(k * math.gcd(s, d) / s)
            for k, s, d in zip(self.kernel_size, self.stride, self.dilation, strict=True)
        )
        return self.in_channels // self.groups * math.prod(taps)

    def module(self, kind: type[nn.ConvTranspose2d], **factory) -> nn.ConvTranspose2d:
        names = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "output_padding", "groups", "bias")
        return kind(**{name: getattr(self, name) for name in names}, dilation=self.dilation, **factory)

    def referenced(self) -> list[int]:
        """The batch elements that are compared with float64: all, or evenly spread ones with the first and the last."""
        macs = self.macs // self.batch
        size = 8 * self.out_channels * math.prod(self.output_size)
        count = min(self.batch, max(2, min(int(REFERENCE_MACS // macs), REFERENCE_BYTES // size)))
        return sorted({round(i * (self.batch - 1) / max(1, count - 1)) for i in range(count)})

    def reduced(self, macs: int = 8_000_000) -> "Case":
        """The same kernel, stride, padding and dilation at a size for a CPU."""
        groups = min(self.groups, 4)
        small = dataclasses.replace(
            self,
            batch=min(self.batch, 2),
            in_channels=groups * min(self.in_channels // self.groups, 32),
            out_channels=groups * min(self.out_channels // self.groups, 8),
            groups=groups,
            # Beyond the reach of a padding of 10, so that an output is left; unequal, so that swapped axes show.
            height=min(self.height, 24),
            width=min(self.width, 17),
        )
        while small.macs > macs and max(small.height, small.width) > 2:
            small = dataclasses.replace(
                small, height=max(1, small.height * 3 // 4), width=max(1, math.ceil(small.width * 3 / 4))
            )
        return small


def _variants(case: Case) -> list[Case]:
    return [case, dataclasses.replace(case, name=f"{case.name}+bias", bias=True)]


_KB69 = Case("kb69", 64, 64, 128, 256, 128, (3, 5), source="after KernelBench level 1, problem 69")
_KB75 = Case(
    "kb75", 16, 32, 128, 256, 64, (3, 5), stride=(2, 3), padding=(1, 2), dilation=(2, 1), groups=4, quick=True,
    source="after KernelBench level 1, problem 75",
)  # fmt: skip
_KB65 = Case("kb65", 8, 64, 512, 512, 64, (3, 7), source="after KernelBench level 1, problem 65")

TARGETS = [*_variants(_KB69), *_variants(_KB75), *_variants(_KB65)]

# Layers of published models, one for each kind of problem. `source` is repository@commit:file.
ZOO = [
    # Depthwise, bilinear upsampling, an odd number of channels.
    Case(
        "liteflownet.upcorr", 1, 49, 112, 256, 49, (4, 4), stride=(2, 2), padding=(1, 1), groups=49, quick=True,
        source="ltkong218/IFRNet@b117bcafcf:liteflownet/run.py",
    ),
    # One tap an output.
    Case(
        "hinet.up3", 1, 128, 360, 640, 64, (2, 2), stride=(2, 2), bias=True, quick=True,
        source="megvii-model/HINet@4e72315430:basicsr/models/archs/hinet_arch.py",
    ),
    Case(
        "dcgan.g3", 64, 256, 8, 8, 128, (4, 4), stride=(2, 2), padding=(1, 1),
        source="pytorch/examples@77f55b9121:dcgan/main.py",
    ),
    # Phases of 4, 2, 2 and 1 taps.
    Case(
        "cyclegan.up2", 1, 128, 128, 128, 64, (3, 3), stride=(2, 2), padding=(1, 1), output_padding=(1, 1), bias=True,
        quick=True, source="junyanz/pytorch-CycleGAN-and-pix2pix@78913853ab:models/networks.py",
    ),
    # Two output channels, a long reduction.
    Case(
        "pwcnet.upfeat3", 1, 597, 56, 128, 2, (4, 4), stride=(2, 2), padding=(1, 1), bias=True,
        source="NVlabs/PWC-Net@07df6eb8b2:PyTorch/models/PWCNet.py",
    ),
    Case(
        "fcn32s.upscore", 1, 21, 12, 16, 21, (64, 64), stride=(32, 32),
        source="wkentaro/pytorch-fcn@4b988509bf:torchfcn/models/fcn32s.py",
    ),
    # One-dimensional.
    Case(
        "hifigan_v1.up0", 1, 512, 1, 430, 256, (1, 16), stride=(1, 8), padding=(0, 4), bias=True,
        source="jik876/hifi-gan@4769534d45:models.py",
    ),
    Case(
        "e2vid.decoder0", 1, 512, 12, 15, 256, (5, 5), stride=(2, 2), padding=(2, 2), output_padding=(1, 1), bias=True,
        source="uzh-rpg/rpg_e2vid@d0a7c005f4:model/submodules.py",
    ),
    Case(
        "stylegan2ada.up128_b8", 1, 2048, 128, 128, 1024, (3, 3), stride=(2, 2), groups=8,
        source="NVlabs/stylegan2-ada-pytorch@d72cc7d041:torch_utils/ops/conv2d_resample.py",
    ),
    # Groups of four channels in, one out.
    Case(
        "wavelets.dwt_inv_nonsep", 8, 12, 129, 129, 3, (4, 4), stride=(2, 2), padding=(2, 2), groups=3,
        source="fbcotter/pytorch_wavelets@9a0c507f04:pytorch_wavelets/dwt/lowlevel.py",
    ),
    # The stride exceeds the kernel: three of four outputs are reached by no tap.
    Case(
        "densepose_hrfpn.interp3", 1, 256, 25, 42, 256, (4, 4), stride=(8, 8), quick=True,
        source="facebookresearch/detectron2@02b5c4e295:projects/DensePose/densepose/modeling/hrfpn.py",
    ),
    # Dilated, with more padding than kernel; here without the batch dimension.
    Case(
        "gtcrn.depth_d5", 1, 16, 73, 33, 16, (3, 3), padding=(10, 1), dilation=(5, 1), groups=16, bias=True,
        batched=False, quick=True, source="Xiaobin-Rong/gtcrn@3862c44808:gtcrn.py",
    ),
]  # fmt: skip

CASES = [*TARGETS, *ZOO]


class Errors(NamedTuple):
    """Distance of a result from the reference; NaN if the result has NaN or inf."""

    relative_l2: float
    largest: float  # absolute


class Deviation:
    """Adds up the distance of a result from a reference, part by part, without waiting for the GPU."""

    def __init__(self):
        self.squares = self.reference_squares = 0
        self.largest = self.largest_reference = torch.zeros((), dtype=torch.float64)

    def add(self, result: torch.Tensor, reference: torch.Tensor) -> None:
        if result.numel() == 0:
            return
        difference = (result.double() - reference.double()).abs()
        self.squares = self.squares + difference.square().sum()
        self.reference_squares = self.reference_squares + reference.double().square().sum()
        # torch.maximum keeps NaN.
        self.largest = torch.maximum(self.largest.to(difference.device), difference.amax())
        magnitude = reference.double().abs().amax()
        self.largest_reference = torch.maximum(self.largest_reference.to(difference.device), magnitude)

    def errors(self) -> Errors:
        squares, reference = float(self.squares), float(self.reference_squares)
        relative = math.sqrt(squares / reference) if reference > 0 else (0.0 if squares == 0 else math.inf)
        return Errors(relative, float(self.largest))


class Floors(NamedTuple):
    """Errors that pass whatever torch's are: the rounding of the result and of the reference itself."""

    relative_l2: float
    largest: float

    @classmethod
    def of(cls, dtype: torch.dtype, products: int, largest_reference: float) -> "Floors":
        # Half an ulp of the dtype; and a float64 sum of n products, in whichever order, is good to about sqrt(n) half
        # ulps of float64, which counts when float64 itself is tested.
        roundoff = torch.finfo(dtype).eps / 2 + math.sqrt(products) * torch.finfo(torch.float64).eps / 2
        return cls(roundoff, 2 * roundoff * largest_reference)


def problems_of(ours: Errors, theirs: Errors, floors: Floors) -> list[str]:
    """Why ``ours`` does not pass beside torch's errors; empty if it does. NaN never passes."""
    problems = []
    if not all(map(math.isfinite, ours)):
        problems.append("the result has NaN or inf")
    if not all(map(math.isfinite, theirs)):
        problems.append("torch's own result has NaN or inf")
    if problems:
        return problems
    limit = max(1.25 * theirs.relative_l2, floors.relative_l2)
    if not ours.relative_l2 <= limit:
        problems.append(f"relative L2 error {ours.relative_l2:.2e}, more than {limit:.2e}")
    limit = 2 * theirs.largest + floors.largest
    if not ours.largest <= limit:
        problems.append(f"largest error {ours.largest:.2e}, more than {limit:.2e}")
    return problems


@dataclasses.dataclass
class Row:
    """One line of the table: a case in one precision and layout."""

    case: Case
    subject: str
    precision: str
    layout: str
    ours: Errors | None = None
    theirs: Errors | None = None
    our_ms: float | None = None
    their_ms: float | None = None
    poisoned: bool = True
    problems: list[str] = dataclasses.field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.problems


class Problem:
    """A case in one dtype: its two modules with the same parameters, an input, and the float64 reference."""

    def __init__(self, case: Case, dtype: torch.dtype, device: torch.device):
        self.case = case
        generator = torch.Generator(device).manual_seed(0)
        torch.manual_seed(0)
        self.theirs = case.module(nn.ConvTranspose2d, dtype=dtype, device=device).requires_grad_(False)
        self.ours = case.module(ConvTranspose2d, dtype=dtype, device=device).requires_grad_(False)
        self.ours.load_state_dict(self.theirs.state_dict())
        shape = (case.batch, case.in_channels, case.height, case.width)
        self.input = torch.randn(shape, dtype=dtype, device=device, generator=generator)

    def to_layout(self, layout: torch.memory_format) -> torch.Tensor:
        """Both modules in that layout; returns the input in it."""
        self.theirs.to(memory_format=layout)
        self.ours.to(memory_format=layout)
        x = self.input.contiguous(memory_format=layout)
        return x if self.case.batched else x.squeeze(0)

    @functools.cached_property
    def reference(self) -> dict[int, torch.Tensor]:
        """Batch element -> (Cout, Hout, Wout), float64, from the parameters and the input as rounded to the dtype."""
        case, module = self.case, self.theirs
        weight = module.weight.double().contiguous()
        bias = None if module.bias is None else module.bias.double()
        return {
            n: F.conv_transpose2d(
                self.input[n : n + 1].double(), weight, bias, case.stride, case.padding, case.output_padding,
                case.groups, case.dilation,
            )[0]
            for n in case.referenced()
        }  # fmt: skip


# Computes a problem's convt module on an input.
Subject = Callable[[Problem, torch.Tensor], torch.Tensor]


def operator(problem: Problem, x: torch.Tensor) -> torch.Tensor:
    """torch.ops.convt on whichever device the input is."""
    return problem.ours(x)


def direct_on_host(problem: Problem, x: torch.Tensor) -> torch.Tensor:
    """The direct kernels' arithmetic, compiled for the CPU; half precisions go through float32 as on a GPU."""
    case, module = problem.case, problem.ours
    wide = torch.promote_types(x.dtype, torch.float32)
    arguments = [t if t is None else t.to(wide) for t in (x, module.weight, module.bias)]
    plan = explain(
        *arguments, case.stride, case.padding, case.output_padding, case.groups, case.dilation, device="h200"
    )
    configuration = next(c.configuration for c in plan.candidates if c.algorithm == "direct" and c.fits)
    y = _C.run_on_host(
        _C.Operation.forward, *arguments, [], case.stride, case.padding, case.output_padding, case.groups,
        case.dilation, f"direct/{configuration}", None,
    )  # fmt: skip
    return y.to(x.dtype)


@contextlib.contextmanager
def without_tf32():
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


class Timer:
    """Median GPU time of a call, with a cold L2 cache."""

    def __init__(self, device: torch.device, budget_ms: float, most: int):
        self.budget_ms, self.most = budget_ms, most
        size = max(2 * torch.cuda.get_device_properties(device).L2_cache_size, 2**28)
        self.flush = torch.empty(size, dtype=torch.uint8, device=device)

    def __call__(self, call: Callable[[], object]) -> float:
        """Milliseconds. ``call`` has run before; it runs once more, and on within the budget."""
        times: list[float] = []
        while not times or (len(times) < self.most and sum(times) < self.budget_ms):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self.flush.zero_()
            start.record()
            call()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        return statistics.median(times)


def _poison(like: torch.Tensor) -> int:
    """Frees a block of the size of ``like`` that is full of NaN, for the next allocation; returns its address."""
    return torch.full_like(like, math.nan).data_ptr()


def _compare(row: Row, problem: Problem, layout: torch.memory_format, subject: Subject, timer: Timer | None) -> None:
    x = problem.to_layout(layout)
    expected = problem.theirs(x)
    poison = _poison(expected) if x.is_cuda else None
    y = subject(problem, x)
    row.poisoned = poison is None or y.data_ptr() == poison
    if y.dtype != expected.dtype or y.shape != expected.shape:
        row.problems.append(f"{y.dtype} {tuple(y.shape)}, but torch gives {expected.dtype} {tuple(expected.shape)}")
        return
    if y.stride() != expected.stride():
        row.problems.append(f"strides {y.stride()}, but torch gives {expected.stride()}")
    if not problem.case.batched:
        y, expected = y.unsqueeze(0), expected.unsqueeze(0)

    ours, theirs, others = Deviation(), Deviation(), Deviation()
    for n in range(problem.case.batch):
        if n in problem.reference:
            ours.add(y[n], problem.reference[n])
            theirs.add(expected[n], problem.reference[n])
        else:
            others.add(y[n], expected[n])
    row.ours, row.theirs = ours.errors(), theirs.errors()
    floors = Floors.of(y.dtype, problem.case.products, float(theirs.largest_reference))
    row.problems += problems_of(row.ours, row.theirs, floors)
    # Batch elements without a reference: two results that each are that near to it are that near to one another.
    limit = max(1.25 * row.theirs.relative_l2, floors.relative_l2) + row.theirs.relative_l2
    distance = others.errors().relative_l2
    if not distance <= limit:
        row.problems.append(f"further batch elements differ from torch's by {distance:.2e} (relative L2)")
    del y, expected
    if timer is not None:
        row.our_ms, row.their_ms = timer(lambda: subject(problem, x)), timer(lambda: problem.theirs(x))


def one_line(error: BaseException) -> str:
    """An exception in one line, without the C++ stack that torch may append."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def run_case(
    case: Case, device: torch.device, subjects: dict[str, Subject], timer: Timer | None = None
) -> Iterator[Row]:
    """A row for each precision, layout and subject. An exception is a row that did not pass."""
    for precision, dtype in PRECISIONS.items():
        problem = None
        for layout, memory_format in LAYOUTS.items():
            for name, subject in subjects.items():
                row = Row(case, name, precision, layout)
                try:
                    with torch.no_grad(), without_tf32():
                        problem = problem or Problem(case, dtype, device)
                        _compare(row, problem, memory_format, subject, timer)
                except Exception as error:
                    row.problems.append(f"{type(error).__name__}: {one_line(error)}")
                yield row


def planned(case: Case, dtype: torch.dtype, device: str):
    """The Plan of a case on a named GPU; nothing is computed."""
    module = case.module(nn.ConvTranspose2d, dtype=dtype, device="meta")
    x = torch.empty(case.input_shape, dtype=dtype, device="meta")
    return explain(
        x, module.weight, module.bias, case.stride, case.padding, case.output_padding, case.groups, case.dilation,
        device=device,
    )  # fmt: skip
