"""What a sweep says of the planner's choices, as Markdown.

The choice is the configuration with the lowest estimate of those that take the layer; the best is the fastest one
whose result is right. Either is taken among all configurations of the sweep that the planner may choose, or among one
family's.
"""

import pandas as pd

from .cases import KINDS, LAYOUTS, PRECISIONS
from .report import CELL, FLOOR_US, WORST, geometric_mean, markdown, share, times, us
from .sweep import TORCH, is_wrong

NEAR = 1.1
ALL = "all"


def load_rows(store):
    rows = pd.DataFrame(store.rows.values())
    rows["wrong"] = [is_wrong(row) for row in store.rows.values()]
    for name in ("estimated_us", "us_median", "floor_us"):
        rows[name] = pd.to_numeric(rows[name], errors="coerce")
    rows["family"] = rows.configuration.str.split("/").str[0]
    return rows


def load_cells(rows):
    """One row a cell and family, and one a cell for all families: its choice and its best configuration."""
    rows = rows.assign(right_us=rows.us_median.where(~rows.wrong))
    ours = rows[(rows.configuration != TORCH) & (rows.reservation == "")]
    torch_us = rows[rows.configuration == TORCH].set_index(CELL).right_us
    tables = []
    for family in (ALL, *dict.fromkeys(ours.family)):
        part = ours if family == ALL else ours[ours.family == family]
        choice = part.loc[part.groupby(CELL).estimated_us.idxmin()].set_index(CELL)
        right = part[part.right_us.notna()]
        best = right.loc[right.groupby(CELL).right_us.idxmin()].set_index(CELL)
        table = choice[["class", "configuration", "estimated_us", "right_us"]].rename(
            columns={"class": "kind", "configuration": "choice", "right_us": "choice_us"}
        )
        table["best"], table["best_us"] = best.configuration, best.right_us
        table["best_estimated_us"], table["floor_us"] = best.estimated_us, best.floor_us
        table["torch_us"] = torch_us
        tables.append(table.assign(family=family).reset_index())
    cells = pd.concat(tables, ignore_index=True)
    cells["vs_torch"] = cells.torch_us / cells.best_us
    cells["over_best"] = cells.choice_us / cells.best_us
    cells["over_floor"] = cells.best_us / cells.floor_us
    cells["over_estimate"] = cells.best_us / cells.best_estimated_us
    overall = cells[cells.family == ALL].set_index(CELL).best
    of_cell = overall.reindex(pd.MultiIndex.from_frame(cells[CELL])).to_numpy()
    cells["fastest"] = cells.best.notna() & (cells.best == of_cell)
    return cells


def figures(cells):
    near = int((cells.over_best <= NEAR).sum())
    large = cells[cells.floor_us >= FLOOR_US]
    return {
        "cells": len(cells),
        "fastest in": int(cells.fastest.sum()),
        "torch / best": times(geometric_mean(cells.vs_torch)),
        "choice within 10 %": f"{near} ({share(near / len(cells))})",
        "choice / best": times(geometric_mean(cells.over_best)),
        "best / its estimate": times(geometric_mean(cells.over_estimate)),
        "best / floor": f"{geometric_mean(large.over_floor):.2f} ({len(large)})" if len(large) else "",
    }


def by_kind_and_family(cells):
    table = []
    for kind in (ALL, *KINDS):
        of_kind = cells if kind == ALL else cells[cells.kind == kind]
        for family in dict.fromkeys(of_kind.family):
            table.append({"class": kind, "family": family} | figures(of_kind[of_kind.family == family]))
    return markdown(table)


def by_mode(cells):
    every = cells[cells.family == ALL]
    groups = [(p, la, every[(every.precision == p) & (every.layout == la)]) for p in PRECISIONS for la in LAYOUTS]
    return markdown([{"precision": p, "layout": la} | figures(part) for p, la, part in groups if len(part)])


def farthest(cells):
    """The cells whose choice is farthest from the best, one a case."""
    far = cells[cells.over_best > NEAR].sort_values("over_best", ascending=False).drop_duplicates("case").head(WORST)
    if far.empty:
        return f"None beyond {NEAR}."
    return markdown([
        {
            "case": c.case, "class": c.kind, "precision": c.precision, "layout": c.layout,
            "choice": c.choice, "estimated us": us(c.estimated_us), "us": us(c.choice_us),
            "best": c.best, "its estimate us": us(c.best_estimated_us), "its us": us(c.best_us),
            "choice / best": times(c.over_best), "torch us": us(c.torch_us), "floor us": us(c.floor_us),
        }
        for c in far.itertuples()
    ])  # fmt: skip


def remarks(rows, cells):
    lines = []
    for (configuration, precision), part in rows[rows.wrong].groupby(["configuration", "precision"]):
        errors = pd.concat([pd.to_numeric(part[name]) for name in ("rel_l2", "rel_l2_torch")])
        worst = "NaN" if pd.to_numeric(part.rel_l2).isna().any() else f"{errors.max():.1e}"
        names = ", ".join(dict.fromkeys(part.case[:5]))
        lines.append(f"**Wrong**: {len(part)} rows of {configuration} in {precision} (error up to {worst}): {names}.")
    for (configuration, note), part in rows[rows.note != ""].groupby(["configuration", "note"]):
        names = ", ".join(dict.fromkeys(part.case[:5]))
        lines.append(f"No figure: {len(part)} rows of {configuration}: {note}; {names}.")
    for reservation, part in rows[rows.reservation != ""].groupby("reservation"):
        names = ", ".join(dict.fromkeys(part.family))
        lines.append(f"Only when forced, in no other figure here: {len(part)} rows of {names}: {reservation}.")
    without = cells[(cells.family == ALL) & cells.choice_us.isna()]
    if len(without):
        lines.append(f"In {len(without)} cells the choice has no figure; they count as not within 10 % of the best.")
    return "\n".join(f"- {line}" for line in lines)


def text(store):
    rows = load_rows(store)
    cells = load_cells(rows)
    out = [f"# Sweep on {store.runs[-1]['gpu'] if store.runs else store.name}", ""]
    for run in store.runs:
        out += [f"{run['date']}, source {run['digest'][:12]}, torch {run['torch']}: `{run['command']}`", ""]
    out += [
        f"{len(rows)} rows, {rows.case.nunique()} cases. The choice is the configuration with the lowest estimate, the "
        "best the fastest with a right result, both among those of the table row's family that the planner may choose. "
        "\"Fastest in\" counts the cells where no other family is faster. Best / floor is over the cells with a floor "
        f"of at least {FLOOR_US} us (their number in brackets). Means are geometric.", "",
    ]  # fmt: skip
    remark = remarks(rows, cells)
    out += [remark, ""] if remark else []
    for operation in dict.fromkeys(cells.op):
        part = cells[cells.op == operation]
        out += [f"## {operation}", "", by_kind_and_family(part), ""]
        out += ["### By precision and layout, all families", "", by_mode(part), ""]
        for family in dict.fromkeys(part.family):
            title = "all families" if family == ALL else family
            out += [f"### The choices farthest from the best, {title}", "", farthest(part[part.family == family]), ""]
    return "\n".join(out)
