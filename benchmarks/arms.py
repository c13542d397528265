"""What a comparison of strategies tells: tables by kind of prompt, and a plot."""

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.measure import table
from benchmarks.runs import Found, total


def arms_tables(founds: Sequence[Found], mode: str) -> None:
    """What was found, by kind of prompt, then over all."""
    plain = [found for found in founds if not found.loops]
    looping = [found for found in founds if found.loops]
    arms = list(founds[0].runs)
    if plain:
        rows = [_summary(plain, arm) for arm in arms]
        header = ["", "tokens a step", "rows a step", "ms a step", "speed, median", "speed, least", "divergent"]
        table(f"All kinds, {mode}: {len(plain)} texts", [*header, "accepted of drafted"], rows)
    measures: dict[str, Callable[[Sequence[Found], str], str]] = {
        "Tokens a step": lambda group, arm: f"{total(group, arm, 'tokens'):.2f}",
        "Rows a step": lambda group, arm: f"{total(group, arm, 'rows'):.1f}",
        "Speed against plain decoding, median": lambda group, arm: f"{statistics.median(speeds(group, arm)):.2f}",
        "Speed against plain decoding, least": lambda group, arm: f"{min(speeds(group, arm)):.2f}",
    }
    if any(found.diverged(arm) for found in plain for arm in arms):
        measures["Divergent texts"] = lambda group, arm: str(sum(found.diverged(arm) for found in group))
    for title, measure in measures.items() if plain else ():
        rows = []
        for kind, group in _by_kind(plain).items():
            cells = [_halves(group, arm, measure) for arm in arms[1:]]
            rows.append([f"{kind} ({len(group)})", *cells])
        table(f"{title}, {mode}: all (tuned / held out)", ["", *arms[1:]], rows)
    if looping:
        rows = []
        for found in looping:
            cells = [f"{total([found], arm, 'tokens'):.2f}, {found.speed(arm):.2f}x" for arm in arms[1:]]
            rows.append([found.case.name, *cells])
        table(f"Texts that repeat themselves, {mode}: tokens a step, speed", ["", *arms[1:]], rows)


def speeds(group: Sequence[Found], arm: str) -> list[float]:
    return [found.speed(arm) for found in group]


def _by_kind(founds: Sequence[Found]) -> dict[str, list[Found]]:
    """In the order of their names; "all" comes last."""
    kinds = sorted({found.case.prompt.kind for found in founds})
    groups = {kind: [found for found in founds if found.case.prompt.kind == kind] for kind in kinds}
    return groups | ({"all": list(founds)} if founds else {})


def _halves(group: Sequence[Found], arm: str, measure: Callable[[Sequence[Found], str], str]) -> str:
    halves = [[found for found in group if found.case.prompt.held_out == half] for half in (False, True)]
    return f"{measure(group, arm)} ({' / '.join(measure(half, arm) if half else '-' for half in halves)})"


def _summary(founds: Sequence[Found], arm: str) -> list[str]:
    runs = [run for found in founds for run in found.runs[arm]]
    worst = min(founds, key=lambda found: found.speed(arm))
    drafted = sum((run.tally.drafted for run in runs), Counter[str]())
    accepted = sum((run.tally.accepted for run in runs), Counter[str]())
    return [
        arm,
        f"{total(founds, arm, 'tokens'):.2f}",
        f"{total(founds, arm, 'rows'):.1f}",
        f"{1e3 * total(founds, arm, 'seconds'):.1f}",
        f"{statistics.median(speeds(founds, arm)):.2f}",
        f"{worst.speed(arm):.2f} ({worst.case.name})",
        f"{sum(found.diverged(arm) for found in founds)}",
        ", ".join(f"{name} {accepted[name] / drafted[name]:.0%} of {drafted[name]:,}" for name in sorted(drafted)),
    ]


def plot(modes: Mapping[str, Sequence[Found]], path: Path) -> None:
    """Tokens a step and speed by kind; a row of panels each for greedy and sampled texts."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(
        len(modes), 2, figsize=(16, 4.5 * len(modes)), dpi=120, squeeze=False, layout="constrained"
    )
    for line, (mode, founds) in zip(panels, modes.items(), strict=True):
        groups = _by_kind([found for found in founds if not found.loops])
        arms = list(founds[0].runs)[1:]
        sides: dict[str, Callable[[Sequence[Found], str], float]] = {
            "tokens a step": lambda group, arm: total(group, arm, "tokens"),
            "speed against plain decoding, median": lambda group, arm: statistics.median(speeds(group, arm)),
        }
        for axes, (label, measure) in zip(line, sides.items(), strict=True):
            for index, arm in enumerate(arms):
                places = [kind + (index + 0.5) / (len(arms) + 1) for kind in range(len(groups))]
                axes.bar(places, [measure(group, arm) for group in groups.values()], 1 / (len(arms) + 1), label=arm)
            axes.axhline(1, color="grey", linewidth=0.8, linestyle=":")
            middles = [kind + 0.5 * len(arms) / (len(arms) + 1) for kind in range(len(groups))]
            axes.set_xticks(middles, list(groups), rotation=30, ha="right")
            axes.set(ylabel=label, title=mode)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", frameon=False, ncols=len(labels))
    figure.savefig(path, metadata={"Software": None})
    plt.close(figure)
