"""Choice of the network: of several candidates, the plan takes the one with the highest expected accuracy."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest

import airfed
from airfed import Run
from airfed.cli import main
from airfed.experiments import benchmark
from airfed.experiments.points import content_key
from airfed.explorer import design
from airfed.planning import Plan, Surrogate, load_surrogate
from airfed.planning.surrogate import load_surrogates
from airfed.problem import InfeasibleError
from airfed.scenario import ScenarioError
from airfed.scenario.learning_section import traits
from airfed.text import phrases
from airfed.training.execution import execute
from airfed.training.setup import prepare

EIGHT = (Path(__file__).parents[1] / "eight.toml").read_text()
ONE = 'model = "quadratic"\ndimension = 20\n'
SMALL = "{convolutions = [[2, 5]], hidden = []}"
LISTED = (
    EIGHT.replace(ONE, f'model = ["logistic", "mlp", {SMALL}]\nimages = 80\n')
    + """
[policy]
objective = "accuracy"
surrogate = "measured.json"
"""
)
BEST = {"logistic": 0.6, "mlp": 0.8, "network 2c5": 0.7}


def surrogate(scenario, accuracy, noise):
    """A surrogate with one accuracy over its whole range."""
    values = np.full((1, 1, 2, 2, 2), accuracy)
    return Surrogate(
        participation=(1.0,),
        rounds=(2, 12),
        clip_norm=(0.5, 1.0),
        noise=noise,
        averages=("none",),
        accuracy=values,
        spread=0.1 * values,
        loss=1 - values,
        loss_spread=0.1 * values,
        about=traits(scenario.learning),
    )


def write(scenario, best=BEST, noise=None):
    """Write the surrogates of the candidates into one file."""
    held = [
        surrogate(each, best[name], (noise or {}).get(name, (1e-6, 1e3)))
        for each in scenario.candidates
        if (name := each.learning.model_title) in best
    ]
    (scenario.folder / "measured.json").write_text(held[0].to_json(*held[1:]))


@pytest.fixture
def scenario(tmp_path):
    (tmp_path / "scenario.toml").write_text(LISTED)
    loaded = airfed.load(tmp_path / "scenario.toml")
    write(loaded)
    return loaded


@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_network_of_the_highest_expected_accuracy_is_taken(scenario, number):
    titles = [each.learning.model_title for each in scenario.candidates]
    write(scenario, {title: 0.9 if index == number else 0.5 for index, title in enumerate(titles)})
    plan, alone = scenario.plan(), scenario.candidates[number].plan()
    chosen, *others = plan.networks
    assert (chosen.name, chosen.accuracy) == (titles[number], pytest.approx(0.9))
    assert plan.problem.learning.dimension == chosen.dimension == scenario.candidates[number].dimension
    assert {each.name for each in others} == set(titles) - {chosen.name}
    written = plan.to_dict()
    del written["networks"]
    assert written == alone.to_dict()  # the plan of that network, to the bit


def test_every_way_to_plan_takes_the_same_network(scenario):
    expected = scenario.plan().to_dict()
    assert airfed.plan(scenario).to_dict() == prepare(scenario).plan.to_dict() == expected
    assert scenario.plan(scenario.problem()).to_dict()["dimension"] == scenario.dimension == expected["dimension"]
    del expected["networks"]
    assert design.from_scenario(scenario).scenario().plan().to_dict() == expected
    assert scenario.compare()[0]["optimal"].to_dict() == expected
    assert scenario.chosen().plan().to_dict() == expected
    assert scenario.surrogate.about["model"] == "mlp"
    other = scenario.problem(dimension=scenario.candidates[0].dimension)
    assert scenario.plan(other).networks[0].name == "logistic"  # a problem of this d
    with pytest.raises(ScenarioError, match="No candidate network has d = 77, as the problem has"):
        scenario.plan(scenario.problem(dimension=77))


def test_the_plan_says_which_and_by_how_much(scenario, capsys):
    assert main(["plan", str(scenario.folder / "scenario.toml")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    logistic, mlp, small = (f"{each.dimension:,}" for each in scenario.candidates)
    assert (
        f"Network chosen: mlp (d = {mlp}): 80.0% expected; 2c5 (d = {small}): 70.0%; logistic (d = {logistic}): 60"
        in said
    )
    assert main(["plan", str(scenario.folder / "scenario.toml"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in found["networks"]] == ["mlp", "network 2c5", "logistic"]
    plan = scenario.plan()
    assert Plan.from_dict(plan.problem, plan.to_dict()).networks == plan.networks


def test_a_run_is_that_of_the_chosen_network_alone(scenario, tmp_path):
    execute(scenario, tmp_path / "run")
    execute(scenario.candidates[1], tmp_path / "alone")
    for name in ("plan.json", "scenario.toml", "model.safetensors", "ledger.jsonl", "metrics.jsonl"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()
    run = Run.open(tmp_path / "run").checked()
    assert (run.scenario.learning.model, run.scenario.learning.candidates) == ("mlp", None)
    assert execute(scenario, tmp_path / "run", resume=True).status == "finished"
    assert execute(run.scenario, tmp_path / "run", resume=True).status == "finished"
    write(scenario, BEST | {"logistic": 0.95})
    with pytest.raises(ValueError, match=r"Cannot resume .*: the scenario \(learning\.model\) changed"):
        execute(scenario, tmp_path / "run", resume=True)


def test_one_network_alone_is_unchanged_and_reads_the_same_file(scenario):
    alone = scenario.candidates[2]
    assert alone.plan().predicted_accuracy == pytest.approx(0.7)
    tables = tomllib.loads(LISTED)
    tables["learning"] |= {"model": "network", "network": {"convolutions": [[2, 5]]}}
    by_hand = airfed.scenario.parse(tables, folder=scenario.folder)
    assert (alone.digest(), alone.to_toml()) == (by_hand.digest(), by_hand.to_toml())
    assert "candidates" not in json.dumps(alone.content())
    assert content_key(scenario) == content_key(scenario.candidates[1])
    assert len(load_surrogates(scenario.folder / "measured.json")) == 3
    with pytest.raises(ValueError, match="must be a surrogate of one network, got 3 networks"):
        load_surrogate(scenario.folder / "measured.json")


def test_a_benchmark_gives_all_methods_the_network_of_the_plan(scenario):
    runs = benchmark.BenchmarkRuns.of(scenario, seeds=2, policies=["optimal", "fedavg"])
    assert {point.scenario.learning.model for point in runs.points} == {"mlp"}


def test_an_audit_attacks_the_plan_of_the_chosen_network(scenario):
    assert scenario.audit(trials=500).to_dict()["mu_claimed"] == scenario.plan().mu_round


def test_a_candidate_outside_the_range_of_its_surrogate_is_not_taken(scenario):
    quiet = (1e-9, 1e-8)  # less noise than any plan has
    write(scenario, noise={"mlp": quiet})
    plan = scenario.plan()
    assert [(each.name, each.accuracy) for each in plan.networks[::2]] == [("network 2c5", 0.7), ("mlp", None)]
    assert "; mlp (d = 50,890): no plan that the surrogate covers." in phrases.network_sentence(plan)
    write(scenario, noise=dict.fromkeys(BEST, quiet))
    with pytest.raises(InfeasibleError, match="the surrogate covers up to 1e-08"):
        scenario.plan()
    with pytest.raises(ScenarioError, match="No candidate network has an expected accuracy"):
        scenario.override({"policy.objective": None}).plan()


def test_surrogates_of_different_data_sets_are_not_compared():
    # The package has a CNN of Fashion-MNIST, 67% here, and a logistic regression of MNIST, 79%; a CNN of MNIST has 81%.
    private = airfed.load(Path(__file__).parents[2] / "examples" / "private.toml")
    asked = private.override({"learning.model": "candidates", "learning.candidates": ["cnn", "logistic"]})
    with pytest.raises(
        ScenarioError, match=r"of 'cnn' is of fashion-mnist, that of 'logistic' of mnist-5k: .* cannot be compared"
    ):
        asked.plan()


def test_nothing_is_guessed_without_a_surrogate(scenario):
    bare = scenario.override({"policy": {}})
    with pytest.raises(
        ScenarioError,
        match=r"No accuracy surrogate fits the candidate 'logistic', so no network can be chosen\. "
        r"To fit a surrogate, run airfed pilot SCENARIO --data PROXY --out FILE\.$",
    ):
        bare.plan()
    write(scenario, {"logistic": 0.6, "mlp": 0.8})
    with pytest.raises(ScenarioError, match=r"must be fitted with model = 'network'.*Run airfed pilot"):
        scenario.plan()
    write(scenario)
    with pytest.raises(ScenarioError, match="the policy is not private, or its plans are outside"):
        scenario.plan(policy="fedavg")


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ('["logistic", "mpl"]', r"learning\.candidates\[1\] must be one of cnn, mlp, logistic.*did you mean 'mlp'"),
        ('["logistic", "quadratic"]', r"learning\.candidates\[1\] must be one of cnn, mlp, logistic"),
        ('["logistic", "logistic"]', "must be different models, got logistic, logistic"),
        ("[]", r"learning\.candidates must have at least one model"),
        ('["logistic", 3]', r"learning\.candidates\[1\] must be a text in quotes, got 3"),
        ("[{convolution = [[2, 5]]}]", r"Unknown key 'learning\.candidates\[0\]\.convolution'; did you mean"),
        ("[{convolutions = [[2]]}]", r"convolutions\[0\] must be \[channels, kernel size\]"),
        ('[{hidden = ["a"]}]', r"learning\.candidates\[0\]\.hidden\[0\] must be a whole number >= 1, got 'a'"),
        ('["mlp"]\ndimension = 3', r"learning\.dimension must not be set with learning\.candidates"),
        ('"candidates"', r"learning\.candidates must have at least one model"),
        (
            '"mlp"\ncandidates = ["cnn"]',
            r"Set learning\.model or \[learning\.candidates\], not both; got model 'mlp' and cnn\.$",
        ),
        ('["mlp"]\ncandidates = ["cnn"]', r"learning\.model must be a text in quotes"),
    ],
)
def test_mistakes(tmp_path, model, says):
    (tmp_path / "s.toml").write_text(EIGHT.replace(ONE, f"model = {model}\n"))
    with pytest.raises(ScenarioError, match=says):
        airfed.load(tmp_path / "s.toml")


def test_candidates_have_a_key_of_their_own(tmp_path):
    (tmp_path / "s.toml").write_text(EIGHT.replace(ONE, f'candidates = ["logistic", {SMALL}]\n'))
    loaded = airfed.load(tmp_path / "s.toml")
    assert [each.learning.model_title for each in loaded.candidates] == ["logistic", "network 2c5"]
    assert loaded.learning.model_title == "one of logistic, network 2c5"
    assert airfed.scenario.parse(tomllib.loads(loaded.to_toml())).learning == loaded.learning


def test_an_own_module_is_a_candidate(scenario, tmp_path):
    pytest.importorskip("torch")
    code = "from torch import nn\n\ndef net():\n    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))\n"
    (scenario.folder / "mine.py").write_text(code)
    both = scenario.override({"learning.model": "candidates", "learning.candidates": ["mlp", "mine:net"]})
    write(both, {"mlp": 0.5, "mine:net": 0.9})
    assert [(each.name, each.dimension) for each in both.plan().networks] == [("mine:net", 7850), ("mlp", 50890)]
    outcome = execute(both, tmp_path / "run")
    assert outcome.setup.scenario.learning.model == "mine:net"
    recorded = Run.open(tmp_path / "run").checked().scenario.learning.model
    assert recorded.endswith("mine:net")
    assert recorded.startswith("/")  # independent of the folder
    assert execute(both, tmp_path / "run", resume=True).status == "finished"
