"""From sweeps to the planner's calibration: what a configuration takes, from what its family's model says.

For each configuration, precision and layout, log(time) = log(scale) + exponent * log(model) by least squares, with the
exponent drawn towards 1 where there are few rows or all of them are of one size. Times are in microseconds.

The planner chooses among configurations that are about as fast as each other. What a model says of those that are far
from the fastest of their cell does not matter, and may be left out.
"""

from math import inf

import numpy as np

from .sweep import TORCH, is_wrong

PRECISIONS = (("fp32",), ("tf32",), ("fp16", "bf16"))
LAYOUTS = ("nchw", "nhwc")
# With fewer rows, those of both layouts are taken together.
FEWEST = 5
# As if so much squared deviation of the logarithms had been seen along the exponent 1.
PRIOR = 2.0
# Further from 1, an exponent that many small layers suggest would mislead for the few large ones.
EXPONENTS = (0.95, 1.05)


def fit(modelled, measured):
    """(scale, exponent) of microseconds; (1, 1) of nothing."""
    if not len(modelled):
        return 1.0, 1.0
    x, y = np.log(np.asarray(modelled, float)), np.log(np.asarray(measured, float))
    dx, rest = x - x.mean(), y - x
    exponent = 1 + (dx * (rest - rest.mean())).sum() / ((dx**2).sum() + PRIOR)
    exponent = float(np.clip(exponent, *EXPONENTS))
    return float(np.exp(y.mean() - exponent * x.mean())), exponent


def table(rows, near=inf):
    """[(configuration, {(precisions, layout): (scale, exponent)})] of a sweep's rows, dicts as in its CSV.

    Args:
        near: only rows of at most so many times their cell's fastest.
    """
    cells = {}
    for row in rows:
        if row["configuration"] == TORCH or row["op"] != "forward" or not row["us_median"] or is_wrong(row):
            continue
        cells.setdefault((row["case"], row["precision"], row["layout"]), []).append(row)
    measured = {}
    for (_, precision, layout), cell in cells.items():
        (precisions,) = [group for group in PRECISIONS if precision in group]
        fastest = min(float(row["us_median"]) for row in cell)
        for row in cell:
            if float(row["us_median"]) <= near * fastest:
                key = row["configuration"], precisions, layout
                measured.setdefault(key, []).append((float(row["modelled_us"]), float(row["us_median"])))
    result = []
    for configuration in sorted({name for name, _, _ in measured}):
        of = {}
        for precisions in PRECISIONS:
            for layout in LAYOUTS:
                pairs = measured.get((configuration, precisions, layout), [])
                if len(pairs) < FEWEST:
                    pairs = [pair for other in LAYOUTS for pair in measured.get((configuration, precisions, other), [])]
                of[precisions, layout] = fit(*zip(*pairs, strict=True)) if pairs else (1.0, 1.0)
        result.append((configuration, of))
    return result


def text(rows, near=inf):
    """csrc/plan/calibration.inc."""
    lines = [
        "// Written by `python -m benchmarks calibrate`, do not edit. {scale, exponent} for float32 without TF32, then",
        "// TF32, then 16 bits; of each NCHW and NHWC.",
        "// clang-format off",
    ]
    for configuration, of in table(rows, near):
        pairs = [[f"{{{of[p, n][0]:.3g}, {of[p, n][1]:.3g}}}" for n in LAYOUTS] for p in PRECISIONS]
        inner = ", ".join(f"{{{', '.join(pair)}}}" for pair in pairs)
        lines.append(f'{{"{configuration}", {{{inner}}}}},')
    return "\n".join(lines) + "\n"
