"""Tables and plots of the results of one GPU: Markdown and PNG beside the CSV."""

import csv
from math import inf

import numpy as np
import pandas as pd

from . import roofline
from .cases import DATA, KINDS, LAYOUTS, PRECISIONS, case_from
from .reference import LARGEST_ERROR
from .store import tree_digest

NEVER_SLOWER = 0.97  # a ratio of times below this is slower, above it within noise
FLOOR_US = 20  # time / floor says nothing where launches dominate
SMALL_US = 3
WORST = 15
ACCURATE = 1.25  # times torch's error: the most that float32 without TF32 may have
CELL = ["case", "op", "precision", "layout"]
# Sources of the cases that the report lists one by one.
LISTED = ("KernelBench", "representative layer")


def load_rows(store, digest):
    """All rows as a table; adds stale (measured with another source), bad (its error is too large or NaN)."""
    rows = pd.DataFrame(store.rows.values())
    for name in ("us_median", "us_p10", "us_p90", "host_us", "floor_us", "rel_l2", "extra_bytes"):
        rows[name] = pd.to_numeric(rows[name], errors="coerce")
    rows["stale"] = [store.digest_of(k) != digest for k in store.rows]
    rows["bad"] = rows.us_median.notna() & ~(rows.rel_l2 <= rows.precision.map(LARGEST_ERROR))
    rows["kind"] = [case_from(row).kind for row in store.rows.values()]
    return rows


def load_cells(rows):
    """One row a cell in which convt has a figure: its row, and times of torch, the best peer and that of either layout.

    Peers with an error that is too large do not count. Ratios are peer / convt: above 1 convt is faster.
    """
    good = rows[rows.us_median.notna() & ~rows.bad]
    cells = good[good.impl == "convt"].set_index(CELL)
    others = good[good.impl != "convt"]
    best = others.loc[others.groupby(CELL).us_median.idxmin()].set_index(CELL)
    cells["torch_us"] = others[others.impl == "torch"].set_index(CELL).us_median
    cells["best_us"] = best.us_median
    cells["best"] = best.impl
    either = best.us_median.groupby(["case", "op", "precision"]).min()
    cells["either_us"] = either.reindex(cells.index.droplevel("layout")).to_numpy()
    cells["vs_torch"] = cells.torch_us / cells.us_median
    cells["vs_best"] = cells.best_us / cells.us_median
    cells["vs_either"] = cells.either_us / cells.us_median
    cells["over_floor"] = cells.us_median / cells.floor_us
    return cells.reset_index()


def geometric_mean(values):
    values = values.dropna()
    return float(np.exp(np.log(values).mean())) if len(values) else float("nan")


def figures(cells):
    """The figures of a group of cells, as a row of a table."""
    large = cells[cells.floor_us >= FLOOR_US]
    slower = cells.assign(slower=cells.vs_best < NEVER_SLOWER)
    return {
        "cells": len(cells),
        "vs torch": times(geometric_mean(cells.vs_torch)),
        "vs best peer": times(geometric_mean(cells.vs_best)),
        "cells not slower": share((cells.vs_best.dropna() >= NEVER_SLOWER).mean()),
        "cases never slower": share(1 - slower.groupby("case").slower.any().mean()),
        "time / floor": f"{geometric_mean(large.over_floor):.2f} ({len(large)})" if len(large) else "",
    }


def times(value):
    return "" if value != value else f"{value:.2f}x"


def us(value):
    return "" if value != value else f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def share(value):
    return "" if value != value else f"{value:.0%}"


def markdown(rows):
    """A Markdown table of a list of dicts with the same keys."""
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    lines += ["| " + " | ".join(str(v).replace("|", "/") for v in row.values()) + " |" for row in rows]
    return "\n".join(lines)


def by_mode(cells):
    rows = [
        {"precision": precision, "layout": layout} | figures(part)
        for (precision, layout), part in sorted(
            cells.groupby(["precision", "layout"]),
            key=lambda g: (PRECISIONS.index(g[0][0]), LAYOUTS.index(g[0][1])),
        )
    ]
    return markdown([*rows, {"precision": "all", "layout": "all"} | figures(cells)])


def by_kind(cells):
    rows = [{"class": kind} | figures(cells[cells.kind == kind]) for kind in KINDS if (cells.kind == kind).any()]
    small = cells[cells.floor_us < SMALL_US]
    if len(small):
        rows.append({"class": f"small (floor < {SMALL_US} us)"} | figures(small))
    return markdown(rows)


def one_by_one(cells):
    """Each cell of KernelBench's and the representative layers; None if there is none."""
    order = {name: i for i, name in enumerate((*PRECISIONS, *LAYOUTS))}
    chosen = cells[cells.source.str.startswith(LISTED)]
    chosen = chosen.sort_values(["precision", "layout"], key=lambda names: names.map(order), kind="stable")
    rows = [
        {
            "case": c.case + (" *" if c.stale else ""),
            "precision": c.precision,
            "layout": c.layout,
            "plan": c.plan,
            "us": us(c.us_median),
            "floor / time": f"{1 / c.over_floor:.2f}",
            "vs torch": times(c.vs_torch),
            "vs best peer": times(c.vs_best),
            "vs best in either layout": times(c.vs_either),
        }
        for c in chosen.itertuples()
    ]
    return markdown(rows) if rows else None


def listed(cells, column, ascending):
    """The extreme cells, one a case."""
    chosen = cells.dropna(subset=[column]).sort_values(column, ascending=ascending).drop_duplicates("case").head(WORST)
    rows = [
        {
            "case": c.case + (" *" if c.stale else ""),
            "class": c.kind,
            "precision": c.precision,
            "layout": c.layout,
            "plan": c.plan,
            "us": us(c.us_median),
            "floor us": f"{us(c.floor_us)} ({c.floor_by})",
            "torch us": us(c.torch_us),
            "best peer": f"{c.best} {us(c.best_us)}",
            "vs best": times(c.vs_best),
            "over floor": times(c.over_floor),
        }
        for c in chosen.itertuples()
    ]
    return markdown(rows) if rows else "None."


def other_costs(rows):
    """Host time, memory and error of each implementation."""
    out = []
    good = rows[rows.us_median.notna()]
    for impl in dict.fromkeys(good.impl):
        part = good[good.impl == impl]
        row = {"implementation": impl, "rows": len(part), "host us, median": f"{part.host_us.median():.3g}"}
        row["extra memory, largest"] = f"{part.extra_bytes.max() / 2**20:.0f} MiB"
        for precision in PRECISIONS:
            errors = part[part.precision == precision].rel_l2
            row[f"{precision} error, median and largest"] = (
                f"{errors.median():.1e} {errors.max():.1e}" if len(errors) else ""
            )
        out.append(row)
    return markdown(out)


def peers_that_win(cells):
    counts = cells.best.value_counts()
    return ", ".join(f"{impl} {share(count / len(cells))}" for impl, count in counts.items())


def against_record(rows, gpu):
    """torch's figures next to those that were recorded on the same kind of GPU before; None without a record."""
    path = DATA / f"torch-{gpu}.csv"
    if not path.exists():
        return None
    recorded = {}
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            for layout in LAYOUTS:
                recorded[row["case"], row["precision"], layout] = float(row[f"{layout}_us"])
    ours = rows[(rows.impl == "torch") & (rows.op == "forward") & rows.us_median.notna()]
    ours = ours.assign(recorded=[recorded.get(k) for k in zip(ours.case, ours.precision, ours.layout, strict=True)])
    ours = ours[ours.recorded.notna()]
    if ours.empty:
        return None
    ours["ratio"] = ours.us_median / ours.recorded.astype(float)
    near = (ours.ratio - 1).abs() <= 0.1
    far = ours[~near].assign(distance=np.log(ours.ratio).abs()).sort_values("distance", ascending=False)
    text = (
        f"torch here / torch as recorded in data/{path.name}: geometric mean {geometric_mean(ours.ratio):.3f}, median "
        f"{ours.ratio.median():.3f}; {share(near.mean())} of {len(ours)} rows within 10 %."
    )
    if len(far):
        table = [
            {"case": r.case, "precision": r.precision, "layout": r.layout, "here us": us(r.us_median),
             "recorded us": us(r.recorded), "ratio": f"{r.ratio:.2f}"}
            for r in far.head(WORST).itertuples()
        ]  # fmt: skip
        text += f" The {min(WORST, len(far))} of the other {len(far)} that differ most:\n\n" + markdown(table)
    return text


def remarks(rows):
    """What stands between the figures and the reader's trust: stale, wrong and missing rows."""
    lines = []
    stale = rows[rows.stale & (rows.impl == "convt")]
    if len(stale):
        cases = list(dict.fromkeys(stale.case))
        names = ", ".join(cases[:8]) + (", ..." if len(cases) > 8 else "")
        lines.append(
            f"**Stale**: {len(stale)} of convt's {(rows.impl == 'convt').sum()} rows were measured with another source "
            f"({len(cases)} cases: {names}). They are marked * in the lists."
        )
    for (impl, precision), part in rows[rows.bad].groupby(["impl", "precision"]):
        worst = part.rel_l2.max() if part.rel_l2.notna().all() else inf
        lines.append(
            f"**Wrong**: {len(part)} rows of {impl} in {precision} have a relative L2 error beyond "
            f"{LARGEST_ERROR[precision]:.0e} (worst {worst:.1e}); they are left out: "
            f"{', '.join(dict.fromkeys(part.case[:5]))}."
        )
    for (impl, why), part in rows[rows.us_median.isna()].groupby(["impl", "plan"]):
        lines.append(f"No figure: {len(part)} rows of {impl}: {why.removeprefix('no figure: ')}.")
    return "\n".join(f"- {line}" for line in lines)


def accuracy(rows):
    """float32 without TF32 against torch's, of this source: the largest ratio of errors, and where it is too large."""
    strict = rows[(rows.precision == "fp32") & rows.us_median.notna() & ~rows.stale]
    ours, theirs = (strict[strict.impl == impl].set_index(CELL).rel_l2 for impl in ("convt", "torch"))
    ratio = (ours / theirs[theirs > 0]).dropna().sort_values(ascending=False)
    if ratio.empty:
        return ""
    worse = ratio[ratio > ACCURATE]
    named = "; ".join(f"{case}, {layout}: {value:.2f}" for (case, _, _, layout), value in worse[:WORST].items())
    return (
        f"float32 without TF32: the error (relative L2) is at most {ratio.iloc[0]:.2f} times torch's, and more than "
        f"{ACCURATE} times in {len(worse)} of {len(ratio)} cells" + (f": {named}." if named else ".")
    )


def runs_table(store):
    rows = []
    counts = pd.Series(list(store.run_of.values()), dtype=int).value_counts()
    for i, run in enumerate(store.runs):
        c = run["ceilings"]
        rows.append({
            "date": run["date"], "rows": counts.get(i, 0), "source": run["digest"][:12],
            "torch": f"{run['torch']}, cuDNN {run['cudnn']}", "driver": run["driver"], "copy TB/s": c["copy"],
            "matmul TFLOP/s": ", ".join(f"{p} {c[p]:.4g}" for p in PRECISIONS), "command": f"`{run['command']}`",
        })  # fmt: skip
    return markdown(rows)


def plot_speedup(cells, path, title):
    """Sorted bars, one a case: peer / convt, the geometric mean over its precisions and layouts."""
    plt = _pyplot()
    figure, axes = plt.subplots(2, 1, figsize=(10, 6.5), layout="constrained")
    for ax, column, peer in zip(axes, ("vs_torch", "vs_best"), ("torch", "the best peer"), strict=True):
        ratio = np.sort(cells.dropna(subset=[column]).groupby("case")[column].apply(geometric_mean))
        slower = ratio < NEVER_SLOWER
        ax.bar(np.arange(len(ratio)), ratio - 1, bottom=1, width=1, color=np.where(slower, "black", "0.65"))
        ax.axhline(1, color="black", linewidth=0.8)
        ax.set(yscale="log", ylabel=f"{peer} / convt", xticks=[])
        counts = f"convt slower in {slower.sum()} cases (black), not slower in {(~slower).sum()} (grey)"
        ax.set_title(f"against {peer}: {counts}", loc="left", fontsize=10)
        ax.grid(axis="y", which="both", color="0.88", linewidth=0.6)
        ax.set_axisbelow(True)
    axes[-1].set_xlabel("cases, sorted in each panel; ratio of GPU times, above 1 convt is faster")
    figure.suptitle(title)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def plot_roofline(rows, store, path, title):
    """Achieved rate over arithmetic intensity, in units of the machine's rate and balance: one roof for all runs."""
    plt = _pyplot()
    figure, axes = plt.subplots(2, 2, figsize=(10, 8), sharex=True, sharey=True, layout="constrained")
    styles = {"torch": {"c": "0.6", "marker": "x", "linewidths": 0.8}, "convt": {"c": "black", "marker": "."}}
    cases = {row["case"]: case_from(row) for row in store.rows.values()}
    shown = rows[rows.us_median.notna() & ~rows.bad]
    for ax, precision in zip(axes.flat, PRECISIONS, strict=True):
        for impl, style in styles.items():
            points = []
            for r in shown[(shown.impl == impl) & (shown.precision == precision)].itertuples():
                run = store.run_of.get((r.case, r.op, r.precision, r.layout, r.impl))
                if run is not None:
                    ceilings = store.runs[run]["ceilings"]
                    memory, compute = roofline.limits_us(cases[r.case], precision, ceilings, r.op)
                    points.append((compute / memory, compute / r.us_median))
            ax.scatter([x for x, _ in points], [y for _, y in points], s=16, label=impl, **style)
        x = np.logspace(-4, 2, 61)
        ax.plot(x, np.minimum(x, 1), color="black", linewidth=1.2)
        ax.plot(x, np.minimum(x, 1) / 10, color="0.4", linewidth=0.8, linestyle="--")
        ax.set(xscale="log", yscale="log", title=precision)
        ax.grid(color="0.9", linewidth=0.6)
        ax.legend(frameon=False, loc="lower right")
    figure.supxlabel("useful FLOPs per byte / machine balance")
    figure.supylabel("useful FLOP/s / measured matmul rate")
    figure.suptitle(f"{title}; solid: the roof, dashed: a tenth of it")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _pyplot():
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def write(store, digest=None):
    """Writes <gpu>-report.md and the plots beside the store's CSV.

    Args:
        digest: of the source that the rows are held against; by default the tree's.

    Returns:
        The summary as text.
    """
    digest = digest or tree_digest()
    rows = load_rows(store, digest)
    gpu = store.runs[-1]["gpu"] if store.runs else store.name
    text = [f"# convt on {gpu}", ""]
    text += ["Ratios are time of the peer / time of convt: above 1 convt is faster. \"not slower\" is a ratio of at "
             f"least {NEVER_SLOWER} against the best peer of the same layout and precision; a case counts as never "
             "slower if that holds in each of its cells. Time / floor is the geometric mean over the cells with a "
             f"floor of at least {FLOOR_US} us (their number in brackets). How all this is measured: the README of "
             "benchmarks.", ""]  # fmt: skip
    summary = []
    if (rows.stale & (rows.impl == "convt")).any():
        summary.append("Some rows of convt are STALE: measured with another source than this tree's.")
    remark = remarks(rows)
    if remark:
        text += [remark, ""]
    cells = load_cells(rows)
    for operation in dict.fromkeys(cells.op):
        part = cells[cells.op == operation]
        stem = f"{store.name}-" + ("" if operation == "forward" else f"{operation}-")
        title = f"convt on {gpu}, {operation}"
        plot_speedup(part, store.folder / f"{stem}speedup.png", title)
        plot_roofline(rows[rows.op == operation], store, store.folder / f"{stem}roofline.png", title)
        overall = by_mode(part)
        layers = one_by_one(part) if operation == "forward" else None
        each = ["### KernelBench's and the representative layers", "", layers, ""] if layers else []
        summary += [f"{gpu}, {operation}, {part.case.nunique()} cases", overall, "", by_kind(part)]
        text += [
            f"## {operation}, {part.case.nunique()} cases", "", overall, "",
            f"The best peer is: {peers_that_win(part)}.", "",
            *([errors, ""] if (errors := accuracy(rows[rows.op == operation])) else []),
            f"![speed-up]({stem}speedup.png)", "", f"![roofline]({stem}roofline.png)", "",
            "### By class", "", "A case is in the first class that fits; the small ones count in their class too.", "",
            by_kind(part), "",
            *each,
            f"### The {WORST} worst against the best peer", "", listed(part, "vs_best", True), "",
            f"### The {WORST} best against the best peer", "", listed(part, "vs_best", False), "",
            f"### The {WORST} farthest from the floor, floor at least {FLOOR_US} us", "",
            listed(part[part.floor_us >= FLOOR_US], "over_floor", False), "",
            "### Other costs", "", other_costs(rows[rows.op == operation]), "",
        ]  # fmt: skip
    record = against_record(rows, store.name)
    if record:
        text += ["## torch against an earlier record", "", record, ""]
        summary += ["", record.split(" The ")[0]]
    if store.runs:
        text += ["## Runs", "", runs_table(store), ""]
    path = store.folder / f"{store.name}-report.md"
    path.write_text("\n".join(text))
    return "\n".join([*summary, "", f"Written: {path.name} and its plots, beside {store.csv_path.name}"])
