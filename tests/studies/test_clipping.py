"""Adaptive against fixed clipping: the page follows from the records, and variants differ in clipping only."""

import numpy as np
import pandas as pd
import pytest

from airfed.scenario import flatten
from studies import clipping


def test_the_page_is_that_of_the_records():
    assert clipping.PAGE.read_text(encoding="utf-8") == clipping.page()


def test_every_training_has_the_same_budget_and_its_own_place():
    found = clipping.rows()
    assert len(found)
    assert not found.duplicated(["model", "kind", "factor", "seed"]).any()
    assert found["epsilon_total"].between(1.999, 2.0).all()
    assert found["accuracy"].between(0.1, 1.0).all()
    fixed = found["kind"] == "fixed"
    assert (found["first_clip_norm"] == found["last_clip_norm"])[fixed].all()
    assert (found["first_clip_norm"] != found["last_clip_norm"])[~fixed].all()
    assert (found.groupby(["model", "seed"])["power_total"].nunique() == 1).all()  # the indicator is included in it


@pytest.mark.parametrize("model", clipping.MODELS)
def test_variants_differ_in_their_clipping_only(model):
    one = flatten(clipping.scenario_of(model, "fixed", 1.0, 3).content())
    other = flatten(clipping.scenario_of(model, "adaptive", 10.0, 3).content())
    changed = {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)}
    rule = {f"learning.adaptive_clipping.{key}" for key in ("quantile", "rate", "share")}
    assert changed == {"learning.clip_norm"} | rule


def test_differences_are_paired_by_seed():
    rows = [
        {"kind": kind, "factor": factor, "seed": seed, "first_clip_norm": 5.0 * factor, "last_clip_norm": 5.0}
        | {"accuracy": 0.5 + 0.1 * seed + (0.02 if kind == "adaptive" else 0.0)}
        for kind, factor in (("fixed", 1.0), ("adaptive", 1.0))
        for seed in (1, 2, 3)
    ]
    text = clipping.table(pd.DataFrame(rows))
    assert "+2.0 ± 0.0 points" in text
    assert f"72.0 ± {100 * 4.3027 * np.std([0.1, 0.2, 0.3], ddof=1) / np.sqrt(3):.1f} %" in text
