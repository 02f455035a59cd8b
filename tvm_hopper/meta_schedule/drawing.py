"""Plot a search: best time over trials, predicted against measured time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tvm_hopper.errors import cannot_tune, require_packages

from .configurations import is_built_in
from .database import Database, Trial
from .journal import visible

WIDTH, HEIGHT = 9.0, 3.2  # inches of one row
MOST_NAME = 60  # characters of a title


def draw(database: Database | str | Path, key: str | None = None) -> Any:
    """Draw the searches of a database, a row for each function.

    Parameters
    ----------
    database : Database, str or Path
        What is drawn, or the work_dir of a tuning run.
    key : str, optional
        The one function to draw; left out, all that have a time.

    Returns
    -------
    figure : matplotlib.figure.Figure
        Show it, or save it with `savefig`.

    Raises
    ------
    TuningError
        Nothing was measured, or there are no records.
    HopperError
        matplotlib is not installed.
    """
    require_packages("draw", "matplotlib")
    from matplotlib.figure import Figure

    database = database if isinstance(database, Database) else Database(database)
    keys = [x for x in database.workloads if database.ranked(x) and key in (None, x)]
    if not keys:
        where = f"database {database.folder}"
        raise cannot_tune(where, "no measured trial" + f" of {key}" * bool(key), "at least one")
    figure = Figure(figsize=(WIDTH, HEIGHT * len(keys)), layout="constrained")
    rows = figure.subplots(len(keys), 2, squeeze=False)
    for name, (left, right) in zip(keys, rows, strict=True):
        trials = database.trials(name)
        _draw_best(left, trials, database.workloads[name]["name"])
        _draw_predicted(right, trials)
    return figure


def _draw_best(axes: Any, trials: list[Trial], name: str) -> None:
    places = [i for i, x in enumerate(trials) if x.seconds is not None]
    times = [(trials[i].seconds or 0.0) * 1e6 for i in places]
    best = [min(times[: i + 1]) for i in range(len(times))]
    axes.plot(places, times, ".", color="0.6", label="a trial")
    axes.step(places, best, where="post", color="C0", label="the best so far")
    choice = next((trials[i] for i in places if is_built_in(trials[i].config)), None)
    if choice is not None:
        time = (choice.seconds or 0.0) * 1e6
        axes.axhline(time, color="C1", linewidth=0.8, label="the package's choice")
    failed = [i for i, x in enumerate(trials) if x.seconds is None]
    if failed:
        axes.plot(failed, [max(times)] * len(failed), "x", color="C3", label="failed")
    axes.set(xlabel="trial", ylabel="us")
    axes.set_title(visible(name)[:MOST_NAME], parse_math=False)  # of a file: no formula
    axes.legend(fontsize="small")


def _draw_predicted(axes: Any, trials: list[Trial]) -> None:
    timed = [x for x in trials if x.seconds is not None]
    predicted = [x.predicted_us for x in timed]
    measured = [(x.seconds or 0.0) * 1e6 for x in timed]
    places = list(range(len(timed)))
    dots = axes.scatter(predicted, measured, c=places, s=12, cmap="viridis")
    ends = [min(*predicted, *measured), max(*predicted, *measured)]
    axes.plot(ends, ends, color="0.6", linewidth=0.8)
    axes.set(title="the model learns", xlabel="us predicted", ylabel="us measured")
    axes.figure.colorbar(dots, ax=axes, label="trial")
