"""Pages of results, generated from records only.

`python -m studies page` writes every page again from the records beside it.
"""

from __future__ import annotations

import csv
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pandas import DataFrame, Series, read_csv

from airfed import scenario
from airfed._disk import write_atomic
from airfed.experiments import claims, points
from airfed.experiments.claims import Verdict, by_seed, check, final_table, summary
from airfed.experiments.figures import FIGURES, Studies, definition_file, settings
from airfed.experiments.results import Estimate, estimate
from studies import antennas, bounds
from studies.catalogue import CHECKS
from studies.markdown import markdown_table, recorded, wrapped
from studies.regret import page as page_of_regret
from studies.regret import rows as rows_of_regret
from studies.regret.regret import MarginVerdict

DOCS: Final = Path(__file__).resolve().parent.parent / "docs"
PAGES: Final = (
    DOCS / "reproduction.md",
    *(DOCS / "studies" / f"{name}.md" for name in ("mnist", "range", "regret", "policies", "antennas")),
)
_SECTIONS: Final = {  # a figure and the experiments whose final results are listed below it
    "fig2": (),
    "fig3": ("fig3", "fig3-gain"),
    "fig4": ("fig4",),
    "fig5": ("fig5",),
    "fig6": ("fig6",),
    "thousand": ("thousand",),
    "ablation": ("ablation",),
    "fading": ("fading",),
    "shadowing": ("shadowing",),
    "limits": (),
    "liu-simeone": (),
}
_TITLES: Final = {"mnist": "Reproduction on all of MNIST", "antennas": "Receive antennas: measurements"}
_NOTES: Final = {"limits": "Plans for one channel realisation of each fleet; nothing is trained."}
_WITHOUT_PICTURE: Final = {"ablation"}  # the table says it all
_TABLES: Final = {
    "bounds": "bounds",
    "regret": "trainings",
    "prediction": "trainings",
    "antennas": "trainings",
}  # figures whose rows are stored beside the page, and the name of their file

Tables = Mapping[str, Sequence[Mapping[str, Any]]]


def final_results(found: Studies) -> DataFrame:
    """Return the final results of studies, except those whose rows are kept as they are (regret, antennas)."""
    listed = {"seed", *claims.SETTINGS}
    plain = {
        name: study
        for name, study in found.items()
        if listed.issuperset({*study.experiment.axes, *(key for v in study.experiment.variants for key in v.axes)})
    }
    return claims.final_results(plain)


def markdown(
    results: DataFrame,
    *,
    figures: Sequence[str],
    quick: bool,
    tables: Tables | None = None,
    page: Path = PAGES[0],
) -> str:
    """Return the page: verdicts, final results, the range in which each claim holds, and how loose the bound is.

    Args:
        results: of every point.
        figures: names of the figures.
        quick: whether they come from the quick version.
        tables: rows of figures that show more than final results (`kept`).
        page: the Markdown file.
    """
    rows = tables or {}
    verdicts = check(results) + [verdict for name in figures if name in CHECKS for verdict in CHECKS[name](rows[name])]
    parts = [
        _head(results, verdicts, figures=figures, quick=quick, tables=rows, page=page),
        _verdicts(verdicts) if verdicts else "",
        _settings(results) if len(results) else "",
        *(_figure(name, results, quick=quick) for name in _SECTIONS if name in figures),
        _range(results) if "range" in figures else "",
        _bounds(rows["bounds"]) if "bounds" in figures else "",
        page_of_regret.regret_section(rows["regret"]) if "regret" in figures else "",
        page_of_regret.prediction_section(rows["prediction"]) if "prediction" in figures else "",
        antennas.section(rows["antennas"]) if "antennas" in figures else "",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def write(page: Path, results: DataFrame, *, figures: Sequence[str], quick: bool, pictures: Path) -> list[Path]:
    """Write the page, its table (PAGE.csv) and its figures (in `images/`).

    Args:
        page: the Markdown file.
        results, figures, quick: see `markdown`.
        pictures: folder of the figures as PNG and their rows as CSV.
    """
    images = page.parent / "images"
    images.mkdir(parents=True, exist_ok=True)
    written = [page]
    for name, table in _kept_files(page, figures).items():
        shutil.copyfile(pictures / f"{name}.csv", table)
        written.append(table)
    for name in (each for each in figures if each not in _WITHOUT_PICTURE):
        picture = images / f"{name}.png"
        shutil.copyfile(pictures / picture.name, picture)
        written.append(picture)
    if len(results):
        write_atomic(page.with_suffix(".csv"), results.to_csv(index=False).encode())
        written.append(page.with_suffix(".csv"))
    text = markdown(results, figures=figures, quick=quick, tables=kept(page, figures), page=page)
    write_atomic(page, wrapped(text).encode())
    return list(dict.fromkeys(written))


def again(page: Path) -> str:
    """Return a written page again, with the figures that it names, from the records beside it."""
    found = re.search(r"`python -m studies (.*?)\s(--quick\s)?--docs", page.read_text(encoding="utf-8"), re.DOTALL)
    if found is None:
        raise ValueError(f"{page} must name the command that wrote it.")
    names, table = found[1].split(), page.with_suffix(".csv")
    results = read_csv(table) if table.is_file() else DataFrame()
    return wrapped(markdown(results, figures=names, quick=bool(found[2]), tables=kept(page, names), page=page))


def rewrite() -> None:
    """Write every page in the docs again."""
    for page in PAGES:
        page.write_text(again(page), encoding="utf-8")


def kept(page: Path, figures: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows that are stored beside a page, by figure.

    Raises:
        RunError: a value is no number.
    """
    found = {}
    for name, file in _kept_files(page, figures).items():
        if name == "antennas":
            found[name] = antennas.read(file)
        else:
            rows = read_rows(file)
            found[name] = rows if name == "bounds" else rows_of_regret.typed(rows, file.name)
    return found


def _kept_files(page: Path, figures: Sequence[str]) -> dict[str, Path]:
    return {name: page.with_name(f"{page.stem}-{_TABLES[name]}.csv") for name in figures if name in _TABLES}


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a CSV file, as text."""
    with file.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def _head(
    results: DataFrame, verdicts: Sequence[Verdict], *, figures: Sequence[str], quick: bool, tables: Tables, page: Path
) -> str:
    inside, name = page.resolve().is_relative_to(DOCS.parent), page.stem
    path = page.resolve().relative_to(DOCS.parent).as_posix() if inside else page.name
    command = f"python -m studies {' '.join(figures)}{' --quick' if quick else ''} --docs {path}"
    sources = []
    if len(results):
        data = ", ".join(results["dataset"].unique())
        sources.append(f"`{name}.csv` (data: {data}; {recorded(results, by='experiment')})")
    if {"regret", "prediction"} & set(figures):
        rows = DataFrame(next(tables[each] for each in ("regret", "prediction") if each in tables))
        sources.append(f"`{name}-trainings.csv` ({recorded(rows, by='scenario')})")
    if "antennas" in figures:
        rows = DataFrame(tables["antennas"])
        sources.append(f"`{name}-trainings.csv` ({recorded(rows, by='label')})")
    head = (
        f"# {_TITLES.get(name, name.capitalize())}\n\n"
        f"Generated by `{command}` from the records in {' and '.join(sources)}. Do not edit this page: change the "
        "experiments and run the command again."
    )
    if not verdicts:
        return head
    rules = []
    if any(not isinstance(verdict, MarginVerdict) for verdict in verdicts):
        rules.append(
            "A comparison passes if the 95% interval of the difference, paired by seed (Student's t), lies above zero."
        )
    if any(isinstance(verdict, MarginVerdict) for verdict in verdicts):
        rules.append(
            'A comparison with "within" is an equivalence test: it passes if the 95% interval lies within the margin.'
        )
    if any(not verdict.passed and not verdict.refuted for verdict in verdicts):
        rules.append('"Not shown": the interval contains the limit.')
    return (
        f"{head}\n\n**{summary(verdicts)}.** {' '.join(rules)} Accuracy is on test images, in percent. Differences "
        "are in percentage points."
    )


def _verdicts(verdicts: Sequence[Verdict]) -> str:
    paper = any(verdict.figure in FIGURES for verdict in verdicts)
    rows = [["claim of Sec. V" if paper else "claim", "comparison", "effect [95% interval]", "verdict", "remark"]]
    claim = ""
    for verdict in verdicts:
        effect = verdict.effect
        rows.append(
            [
                f"{verdict.claim} ({verdict.figure})" if verdict.claim != claim else "",
                verdict.comparison,
                f"{effect.mean:+.2f} [{effect.low:+.2f}, {effect.high:+.2f}] {verdict.unit}",
                {"FAIL": "**FAIL**"}.get(verdict.outcome, verdict.outcome),
                "; ".join(part for part in (verdict.reason, verdict.remark) if part),
            ]
        )
        claim = verdict.claim
    return "## Verdicts\n\n" + markdown_table(rows)


def _settings(results: DataFrame) -> str:
    loaded = scenario.load(definition_file("scenario"))
    known = [name for name in results["dataset"].unique() if name in scenario.DATASET_SHAPES]
    dataset = known[0] if known else loaded.learning.dataset
    lines = definition_file("scenario").read_text(encoding="utf-8").splitlines()
    comment = [line.removeprefix("#").removeprefix(" ") for line in lines if line.startswith("#")]
    reasons = "\n".join(comment[2:])
    return (
        "## Settings that the paper does not state\n\n"
        f"{settings(loaded.vary({'learning.dataset': dataset}))}\n\n```text\n{reasons}\n```"
    )


def _figure(name: str, results: DataFrame, *, quick: bool) -> str:
    title = points.load(definition_file(name)).title
    parts = [f"## {name}: {title}", *([] if name in _WITHOUT_PICTURE else [f"![{name}](images/{name}.png)"])]
    parts += [_NOTES[name]] if name in _NOTES else []
    for experiment in _SECTIONS[name]:
        own = results[results["experiment"] == experiment]
        planned = points.load(definition_file(experiment), quick=quick).axes["seed"]
        parts += [markdown_table(final_table(own)), _effort(own) + _left_out(planned, own)]
    return "\n\n".join(parts)


def _left_out(planned: Sequence[Any], own: DataFrame) -> str:
    """Return a sentence about the seeds without results; empty if there are none."""
    missing = sorted(set(planned) - set(own["seed"]))
    if not missing:
        return ""
    which = f"Seed {missing[0]} is" if len(missing) == 1 else f"Seeds {', '.join(map(str, missing))} are"
    return f" {which} left out of all designs: a training failed, or diverged before its first evaluation."


def _effort(results: DataFrame) -> str:
    return f"{len(results)} runs, {results['seconds'].mean():.0f} s each on average."


def _range(results: DataFrame) -> str:
    own = results[results["experiment"] == "range"]
    rows = [
        [
            *("ϖ", "σ", "proposed − full", "best E of 1, 5, 20"),
            *("best E − E = 1", "best E − E = 20", "proposed − best fixed E"),
        ]
    ]
    scheduling, interior, overall = {}, {}, {}
    grid = sorted(set(zip(own["learning.clip_norm"], own["link.noise_std"], strict=True)))
    for point in grid:
        where = dict(zip(("learning__clip_norm", "link__noise_std"), point, strict=True))
        by_step = {
            step: by_seed(own, "accuracy", label=f"proposed devices, E = {step}", **where) for step in (1, 5, 20)
        }
        best = max(by_step, key=lambda step: by_step[step].sum())
        proposed = by_seed(own, "accuracy", label="proposed, best I", **where)
        full = by_seed(own, "accuracy", label="full, best I", **where)
        gain, ends = _points(proposed, full), [_points(by_step[best], by_step[end]) for end in (1, 20)]
        rest = _points(proposed, by_step[best])
        cells = [str(gain), str(best), *(str(end) if end.mean else "" for end in ends), str(rest)]
        rows.append([*(f"{value:g}" for value in point), *cells])
        scheduling[point] = gain.low > 0
        interior[point] = best == 5 and all(end.low > 0 for end in ends)
        overall[point] = rest.high >= 0
    sentences = [
        _held("The proposed scheduling is better than full scheduling", scheduling),
        _held("The best E is an interior one (better than E = 1 and E = 20)", interior),
        _held(
            "The overall design is at least as good as the best of the fixed E", overall, "not contradicted", "refuted"
        ),
    ]
    return (
        "## Range of settings in which the claims hold\n\n![range](images/range.png)\n\n"
        + markdown_table(rows)
        + "\n\n"
        "Differences in points of accuracy, with 95% intervals:\n\n"
        + "\n".join(f"- {sentence}" for sentence in sentences)
        + f"\n\n{_effort(own)}"
    )


def _held(claim: str, holds: Mapping[tuple[float, float], bool], yes: str = "shown", no: str = "not shown") -> str:
    """Return the clipping norms and noise levels at which a claim was shown, and at which it was not."""
    parts = []
    for norm in dict.fromkeys(norm for norm, _ in holds):
        for word, wanted in ((yes, True), (no, False)):
            levels = [f"{noise:g}" for (own, noise), good in holds.items() if own == norm and good == wanted]
            if levels:
                parts.append(f"{word} at ϖ = {norm:g}, σ = {', '.join(levels)}")
    return f"{claim}: {'; '.join(parts)}."


def _bounds(rows: Sequence[Mapping[str, Any]]) -> str:
    head = "## Bounds and measurements\n\n![bounds](images/bounds.png)\n\nOne training (one seed) for each model and I."
    return "\n\n".join([head, *bounds.sentences(rows)])


def _points(first: Series, second: Series) -> Estimate:
    return estimate((100 * (first - second)).dropna())
