"""From sweeps to the planner's calibration: what a configuration takes, from what its family's model says.

For each configuration, precision and layout, log(time) = log(scale) + exponent * log(model) by least squares, with the
exponent drawn towards 1 where there are few rows or all of them are of one size. Times are in microseconds.

The planner chooses among configurations that are about as fast as each other. What a model says of those that are far
from the fastest of their cell does not matter, and may be left out. What does matter is how much slower the choice is
than the fastest: `refined` changes the scales of a calibration so that this is least, by trying.
"""

import re
from itertools import product
from math import inf

import numpy as np

from .sweep import TORCH, is_wrong

PRECISIONS = (("fp32",), ("tf32",), ("fp16", "bf16"))
LAYOUTS = ("nchw", "nhwc")
# Of a configuration that takes what its model says.
NEUTRAL = dict.fromkeys(product(PRECISIONS, LAYOUTS), (1.0, 1.0))
# With fewer rows, those of both layouts are taken together.
FEWEST = 5
# As if so much squared deviation of the logarithms had been seen along the exponent 1.
PRIOR = 2.0
# Further from 1, an exponent that many small layers suggest would mislead for the few large ones.
EXPONENTS = (0.95, 1.05)
# By how much a scale may be refined, and in which steps, as logarithms. (Judged by layers that were left out, twice as
# much is no better in 16 bits and worse in TF32.)
FARTHEST = 0.1
STEPS = (-0.08, -0.04, -0.02, 0.02, 0.04, 0.08)
# Of the mean loss, what a step must gain; and the difference of two estimates' logarithms at which one is chosen e
# times as often: the loss of a choice that is nearly another one is between theirs.
LEAST_GAIN = 2e-5
TEMPERATURE = 0.03


def fit(modelled, measured):
    """(scale, exponent) of microseconds; (1, 1) of nothing."""
    if not len(modelled):
        return 1.0, 1.0
    x, y = np.log(np.asarray(modelled, float)), np.log(np.asarray(measured, float))
    dx, rest = x - x.mean(), y - x
    exponent = 1 + (dx * (rest - rest.mean())).sum() / ((dx**2).sum() + PRIOR)
    exponent = float(np.clip(exponent, *EXPONENTS))
    return float(np.exp(y.mean() - exponent * x.mean())), exponent


def by_cell(rows):
    """{(case, precision, layout): rows of the configurations that were measured}."""
    cells = {}
    for row in rows:
        if row["configuration"] == TORCH or row["op"] != "forward" or not row["us_median"] or is_wrong(row):
            continue
        cells.setdefault((row["case"], row["precision"], row["layout"]), []).append(row)
    return cells


def table(rows, near=inf):
    """[(configuration, {(precisions, layout): (scale, exponent)})] of a sweep's rows, dicts as in its CSV.

    Args:
        near: only rows of at most so many times their cell's fastest.
    """
    measured = {}
    for (_, precision, layout), cell in by_cell(rows).items():
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


def renewed(rows, calibration, families, near=inf):
    """`calibration`, as table() returns it, with configurations whose names begin with `families` fitted anew."""
    fitted = {name: of for name, of in table(rows, near) if name.startswith(tuple(families))}
    return sorted((dict(calibration) | fitted).items())


def restricted(before, after, precisions, layouts):
    """`after` where a precision and a layout are among these, `before` elsewhere; both as table() returns them.

    float16 and bfloat16 have the same scales: those change if either is named.
    """
    before, after = dict(before), dict(after)
    result = []
    for name in sorted({*before, *after}):
        old, new = before.get(name, NEUTRAL), after.get(name, NEUTRAL)
        of = {key: (new if key[1] in layouts and set(key[0]) & set(precisions) else old)[key] for key in NEUTRAL}
        result.append((name, of))
    return result


def choice_loss(estimates, losses, first):
    """The mean over cells of what the choice by `estimates` loses; `first` of each cell's rows."""
    counts = np.diff(np.append(first, len(estimates)))
    lowest = np.repeat(np.minimum.reduceat(estimates, first), counts)
    share = np.exp((lowest - estimates) / TEMPERATURE)
    return (np.add.reduceat(share * losses, first) / np.add.reduceat(share, first)).mean()


def best_shifts(number, estimates, losses, first, movable):
    """For each configuration what to add to its estimates so that choice_loss() is least, by coordinate descent.

    Args:
        number: of each row, its configuration's.
        movable: of each configuration, whether it has a shift.
    """
    shifts, least = np.zeros(len(movable)), choice_loss(estimates, losses, first)
    before = inf
    while least < before:
        before = least
        for i, step in product(np.flatnonzero(movable), STEPS):
            if abs(shifts[i] + step) > FARTHEST + 1e-9:
                continue
            shifted = estimates + np.where(number == i, step, 0)
            loss = choice_loss(shifted, losses, first)
            if loss < least - LEAST_GAIN:
                least, estimates = loss, shifted
                shifts[i] += step
    return shifts


def refined(rows, calibration, families=()):
    """`calibration`, as table() returns it, with other scales: those by which the choice's loss is least.

    The loss of a choice is the logarithm of its time over the fastest's, both among those that the planner may choose.
    Each precision and layout is for itself.

    Args:
        families: only configurations whose names begin so are changed; by default all.
    """
    result = {name: dict(of) for name, of in calibration}
    cells = by_cell(row for row in rows if not row.get("reservation"))
    for key in product(PRECISIONS, LAYOUTS):
        group = [cell for (_, precision, layout), cell in cells.items() if precision in key[0] and layout == key[1]]
        flat = [row for cell in group for row in cell]
        if not flat:
            continue
        names = sorted({row["configuration"] for row in flat})
        for name in names:
            result.setdefault(name, dict(NEUTRAL))
        number = np.array([names.index(row["configuration"]) for row in flat])
        scales, exponents = np.array([result[name][key] for name in names]).T
        modelled, measured = (np.log([float(row[of]) for row in flat]) for of in ("modelled_us", "us_median"))
        counts = [len(cell) for cell in group]
        first = np.cumsum([0, *counts[:-1]])
        losses = measured - np.repeat(np.minimum.reduceat(measured, first), counts)
        movable = [not families or name.startswith(tuple(families)) for name in names]
        shifts = best_shifts(number, np.log(scales)[number] + exponents[number] * modelled, losses, first, movable)
        for name, scale, exponent in zip(names, scales * np.exp(shifts), exponents, strict=True):
            result[name][key] = float(scale), float(exponent)
    return sorted(result.items())


def read(source):
    """table() of the text of a csrc/plan/calibration.inc."""
    result = []
    for name, rest in re.findall(r'\{"([^"]+)", (.*)\},', source):
        numbers = iter(float(v) for v in re.findall(r"[\d.e+-]+", rest))
        result.append((name, {key: (next(numbers), next(numbers)) for key in product(PRECISIONS, LAYOUTS)}))
    return result


def text(calibration):
    """csrc/plan/calibration.inc of what table() or refined() returns."""
    lines = [
        "// Written by `python -m benchmarks calibrate`, do not edit. {scale, exponent} for float32 without TF32, then",
        "// TF32, then 16 bits; of each NCHW and NHWC.",
        "// clang-format off",
    ]
    for configuration, of in calibration:
        if all(pair == (1, 1) for pair in of.values()):
            continue
        pairs = [[f"{{{of[p, n][0]:.3g}, {of[p, n][1]:.3g}}}" for n in LAYOUTS] for p in PRECISIONS]
        inner = ", ".join(f"{{{', '.join(pair)}}}" for pair in pairs)
        lines.append(f'{{"{configuration}", {{{inner}}}}},')
    return "\n".join(lines) + "\n"
