"""The layers that are measured: data/cases.csv, one row a shape."""

import csv
from dataclasses import dataclass, fields
from fnmatch import fnmatch
from pathlib import Path

DATA = Path(__file__).parent / "data"

OPERATIONS = ("forward", "input_grad", "weight_grad")
PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
LAYOUTS = ("nchw", "nhwc")
# In the order of the table. The optional ones change nothing for a lone layer and cost compile or search time.
PEERS = ("torch", "gemm_shuffle", "gemm_fold", "conv2d_flipped")
OPTIONAL_PEERS = ("torch_compile", "cudnn_benchmark")


@dataclass(frozen=True)
class Case:
    """One ConvTranspose2d layer at one input size. Sizes are in elements or pixels."""

    case: str
    source: str
    n: int
    cin: int
    h: int
    w: int
    cout: int
    kh: int
    kw: int
    sh: int
    sw: int
    ph: int
    pw: int
    oph: int
    opw: int
    dh: int
    dw: int
    groups: int
    bias: bool = False

    @property
    def kernel(self):
        return self.kh, self.kw

    @property
    def stride(self):
        return self.sh, self.sw

    @property
    def padding(self):
        return self.ph, self.pw

    @property
    def output_padding(self):
        return self.oph, self.opw

    @property
    def dilation(self):
        return self.dh, self.dw

    @property
    def out_size(self):
        """(height, width) of the output."""
        return tuple(
            (i - 1) * s - 2 * p + d * (k - 1) + q + 1
            for i, s, p, d, k, q in zip(
                self.x_shape[2:],
                self.stride,
                self.padding,
                self.dilation,
                self.kernel,
                self.output_padding,
                strict=True,
            )
        )

    @property
    def x_shape(self):
        return self.n, self.cin, self.h, self.w

    @property
    def w_shape(self):
        return self.cin, self.cout // self.groups, self.kh, self.kw

    @property
    def y_shape(self):
        return self.n, self.cout, *self.out_size

    @property
    def kind(self):
        """The class under which the report counts the case; the first that fits."""
        if self.groups > 1:
            return "depthwise" if self.cin == self.groups else "grouped"
        if any(d > 1 and k > 1 for d, k in zip(self.dilation, self.kernel, strict=True)):
            return "dilated"
        if self.kernel == self.stride and self.padding == (0, 0):
            return "k = s"
        if (self.kh == 1 and self.sh == 1) or (self.kw == 1 and self.sw == 1):
            return "1-D"
        if self.cout <= 8:
            return "tiny Cout"
        return "dense stride 1" if self.stride == (1, 1) else "dense strided"


KINDS = ("dense stride 1", "dense strided", "k = s", "depthwise", "grouped", "tiny Cout", "dilated", "1-D")
SHAPE_COLUMNS = tuple(f.name for f in fields(Case) if f.name != "bias")


def case_from(row):
    """The Case of a CSV row (a mapping of strings or numbers); a result row has no bias and gets none."""
    numbers = {name: int(row[name]) for name in SHAPE_COLUMNS[2:]}
    return Case(row["case"], row["source"], **numbers, bias=bool(int(row.get("bias") or 0)))


def load_cases(path=DATA / "cases.csv"):
    """The layers of a table.

    Raises:
        ValueError: if a column is missing.
        OSError: if there is no such file.
    """
    with open(path, newline="") as file:
        rows = csv.DictReader(file)
        if missing := set(SHAPE_COLUMNS).difference(rows.fieldnames or ()):
            raise ValueError(f"{path} has no column {', '.join(sorted(missing))}")
        return [case_from(row) for row in rows]


def select(cases, only=(), quick=False, shard=(1, 1)):
    """The cases that a command asks for.

    Args:
        only: names or shell patterns ("kb*"); empty for all.
        quick: the KernelBench layers and one layer in sixteen of the rest.
        shard: (i, n): every n-th case from the i-th, counted from 1.

    Raises:
        ValueError: if a pattern fits no case.
    """
    for pattern in only:
        if not any(fnmatch(c.case, pattern) for c in cases):
            raise ValueError(f"no case is called {pattern!r}; `python -m benchmarks cases` lists them")
    if only:
        cases = [c for c in cases if any(fnmatch(c.case, pattern) for pattern in only)]
    if quick:
        cases = [c for i, c in enumerate(cases) if c.source.startswith("KernelBench") or i % 16 == 0]
    index, count = shard
    return cases[index - 1 :: count]
