"""Verdicts on made-up results: true claims pass, false ones fail with a reason; and the page made from them."""

import itertools
import re
from pathlib import Path

import pandas as pd
import pytest

from airfed.experiments import claims as verdicts
from studies import page as reproduction

FIGURES = ("fig2", "fig3", "fig4", "fig5", "fig6", "thousand", "range", "limits")


def row(experiment, label, seed, accuracy, *, rounds=40, minimum=0.1, noise=1.0, clip=5.0, loss=None):
    return {
        "experiment": experiment,
        "dataset": "mnist-5k",
        "label": label,
        "seed": seed,
        "channel.minimum": minimum,
        "link.noise_std": noise,
        "learning.clip_norm": clip,
        "num_devices": 100,
        "num_scheduled": 57,
        "rounds": rounds,
        "status": "finished",
        "binding": "privacy",
        "accuracy": accuracy,
        "loss": 1 - accuracy if loss is None else loss,
        "test_loss": 1 - accuracy,
        "alignment": 0.6,
        "seconds": 6.0,
        "version": "0.3.0",
    }


def wobble(seed):
    return (0.0, 0.01, -0.008)[seed]


def made_up():
    rows = []
    for seed in range(3):
        for label, accuracy in (("proposed", 0.9), ("uniform, 50 devices", 0.5), ("full", 0.6)):
            rows.append(row("fig3", label, seed, accuracy + wobble(seed)))
        rows.append(row("fig3", "full, no weak device", seed, 0.95))
        for minimum, full in ((0.1, 0.6), (0.2, 0.75), (0.5, 0.9)):
            rows.append(row("fig3-gain", "proposed", seed, 0.9 + wobble(seed), minimum=minimum))
            rows.append(row("fig3-gain", "full", seed, full, minimum=minimum))
        for rounds, accuracy in ((200, 0.7), (40, 0.9), (10, 0.8)):
            for experiment in ("fig4", "fig5"):
                rows.append(row(experiment, f"I = {rounds}", seed, accuracy + wobble(seed) / 2, rounds=rounds))
        for label, accuracy in (("proposed", 0.9), ("full, best I", 0.8), ("uniform 50, best I", 0.3)):
            rows.append(row("fig6", label, seed, accuracy + wobble(seed), rounds=53))
        for label, accuracy in (("N = 1000", 0.9), ("N = 100", 0.3)):
            rows.append(row("thousand", label, seed, accuracy + wobble(seed)))
        for noise, clip in itertools.product((0.1, 1.0), (1.0, 5.0)):
            best = 5 if clip == 5.0 else 1
            for label, accuracy in (
                *(("proposed, best I", 0.9), ("full, best I", 0.8 + (noise < 1) / 5)),
                *((f"proposed devices, E = {steps}", 0.9 if steps == best else 0.7) for steps in (1, 5, 20)),
            ):
                rows.append(row("range", label, seed, accuracy + wobble(seed), noise=noise, clip=clip))
    return pd.DataFrame(rows)


def test_true_claims_pass():
    checked = verdicts.check(made_up())
    assert {verdict.figure for verdict in checked} == {"fig3", "fig4", "fig5", "fig6", "thousand"}
    assert all(verdict.passed for verdict in checked), [v.comparison for v in checked if not v.passed]
    first = checked[0]
    assert first.comparison == "proposed − uniform, 50 devices"
    assert first.effect.mean == pytest.approx(40.0)
    assert "full, no weak device" not in "".join(verdict.comparison for verdict in checked)


def test_a_comparison_of_the_same_runs_in_two_figures_counts_once():
    checked = verdicts.check(made_up())
    assert [(v.figure, v.unit) for v in checked if v.figure in ("fig4", "fig5")] == [
        *[("fig4", "points")] * 2,
        *[("fig5", "nats")] * 2,
    ]
    other = verdicts.check(changed(made_up(), "fig5", "I = 200", [0.71, 0.72, 0.7]))
    assert [(v.figure, v.unit) for v in other].count(("fig5", "points")) == 1  # these are no longer the same runs
    page = reproduction.markdown(made_up(), figures=FIGURES, quick=True)
    assert f"**{len(checked)} of {len(checked)} comparisons pass.**" in page


def changed(results, experiment, label, accuracy):
    results = results.copy()
    own = (results["experiment"] == experiment) & (results["label"] == label)
    results.loc[own, "accuracy"] = results.loc[own, "seed"].map(dict(enumerate(accuracy)))
    return results


def test_a_false_claim_fails_with_the_reason():
    checked = verdicts.check(changed(made_up(), "fig6", "full, best I", [0.99, 0.98, 0.985]))
    (bad,) = [verdict for verdict in checked if not verdict.passed]
    assert bad.comparison == "proposed − full, best I"
    assert bad.reason == "the records show the opposite"


def test_seeds_that_disagree_do_not_pass():
    checked = verdicts.check(changed(made_up(), "fig6", "full, best I", [0.99, 0.5, 0.9]))
    (bad,) = [verdict for verdict in checked if not verdict.passed]
    assert bad.reason == "3 seeds do not separate it from zero"


def test_a_best_at_the_end_is_not_interior():
    checked = verdicts.check(changed(made_up(), "fig4", "I = 200", [0.95, 0.96, 0.94]))
    failed = {verdict.comparison for verdict in checked if not verdict.passed}
    assert failed == {"best I − I = 200"}


def test_the_other_seeds_choose_the_best_grid_point():
    # each seed is best at a grid point of its own; chosen by the others, the "best" has no effect
    curves = {index: pd.Series({seed: float(seed == index) for seed in range(3)}) for index in range(3)}
    for verdict in verdicts._interior(curves, claim="", figure="", symbol="I", unit=""):
        assert verdict.effect.mean <= 0


def test_results_survive_the_csv_to_the_last_bit(tmp_path):
    results = made_up()
    results.to_csv(tmp_path / "results.csv", index=False)
    again = pd.read_csv(tmp_path / "results.csv")
    assert [v.to_dict() for v in verdicts.check(again)] == [v.to_dict() for v in verdicts.check(results)]


def test_the_page_lists_every_verdict():
    results = changed(made_up(), "fig6", "full, best I", [0.99, 0.98, 0.985])
    page = reproduction.markdown(results, figures=FIGURES, quick=True)
    checked = verdicts.check(results)
    assert page.count("| pass |") == sum(verdict.passed for verdict in checked)
    assert page.count("| **FAIL** |") == 1
    assert "the records show the opposite" in page
    assert "σ = 1" in page
    assert "Range of settings" in page
    assert "12 runs, 6 s each on average." in page
    assert (
        "- The proposed scheduling is better than full scheduling: shown at ϖ = 1, σ = 1; not shown at ϖ = 1, "
        "σ = 0.1; shown at ϖ = 5"
    ) in page
    assert "E = 20): not shown at ϖ = 1, σ = 0.1, 1; shown at ϖ = 5, σ = 0.1, 1." in page
    assert "fixed E: not contradicted at ϖ = 1, σ = 0.1, 1; not contradicted at ϖ = 5, σ = 0.1, 1." in page


def test_a_final_table_has_one_row_per_design():
    header, *rows = reproduction.final_table(made_up().query("experiment == 'fig3-gain'"))
    assert header[:2] == ["design", "h_min"]
    assert len(rows) == 6
    assert rows[0][-3].startswith("90.1 ± ")


@pytest.mark.parametrize("page", reproduction.PAGES, ids=lambda page: page.stem)
def test_a_page_in_the_docs_follows_from_the_records_beside_it(page):
    text = page.read_text(encoding="utf-8")
    assert text == reproduction.again(page)
    for picture in re.findall(r"\]\((images/.*?)\)", text):
        assert (page.parent / picture).is_file()


def test_the_records_separate_what_the_docs_say():
    """The list in docs/fading.md, and the paragraph on averages in docs/surrogate.md."""
    results = pd.read_csv(reproduction.DOCS / "studies" / "policies.csv")
    found = {verdict.comparison: verdict for verdict in reproduction.check(results)}
    assert len(found) == 10
    open_ = {name: verdict for name, verdict in found.items() if not verdict.passed}
    assert set(open_) == {"fading: causal − myopic", "shadowing: causal − myopic"}
    text = " ".join((reproduction.DOCS / "fading.md").read_text(encoding="utf-8").split())
    effects = [verdict.effect for verdict in open_.values()]
    said = [f"{each.mean:+.1f} points [{each.low:+.1f}, {each.high:+.1f}]" for each in effects]
    assert f"{said[0]} with Rayleigh fading" in text
    assert f"{said[1].replace(' points', '')} with common shadowing" in text
    smaller = [found[f"{name}: 1 − causal / myopic, bounds"].effect.mean for name in ("fading", "shadowing")]
    assert f"by {smaller[0]:.1f}% and by {smaller[1]:.0f}%" in text
    shadowing = results[(results["experiment"] == "shadowing") & (results["label"] == "myopic")]
    assert ((shadowing["accuracy"] < 0.3).sum(), len(shadowing)) == (2, 10)


def test_a_page_says_how_many_seeds_and_versions_its_records_have():
    results = made_up()
    results.loc[results["seed"] == 2, "version"] = "0.2.0"
    page = reproduction.markdown(results, figures=FIGURES, quick=True, page=Path("some.md"))
    assert "--docs some.md`" in page
    assert "`some.csv` (data: mnist-5k; 3 seeds; airfed 0.2.0, 0.3.0)" in page
    one = made_up().query("seed == 0")
    assert "1 seed; airfed 0.3.0" in reproduction.markdown(one, figures=FIGURES, quick=True)


def test_a_page_names_the_seeds_that_were_left_out():
    results = made_up().query("experiment == 'fig6'")  # seeds 0 to 2 of 0 to 3
    for gone, said in ((), "Seed 3 is left out"), ((1,), "Seeds 1, 3 are left out"):
        page = reproduction.markdown(results[~results["seed"].isin(gone)], figures=["fig6"], quick=True)
        assert page.count("left out of all designs") == 1
        assert said in page
