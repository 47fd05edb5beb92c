import tomllib

import pytest

from airfed import scenario
from airfed._usercode import UserCode
from airfed.scenario import ScenarioError, template
from airfed.scenario.learning_section import user_code


@pytest.mark.parametrize("name", ["cnn", "mlp", "logistic", "quadratic", "ridge", "network"])
def test_a_built_in_model_is_no_code(name):
    assert user_code(name) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mymodel.Net", "did you mean 'mymodel:Net'?"),
        ("pkg.nets.Net", "did you mean 'pkg.nets:Net'?"),
        ("mymodel.py:Net", "did you mean 'mymodel:Net'?"),
        ("/far/away/mymodel.py:Net", "did you mean '/far/away/mymodel:Net'?"),
        ("cn", "did you mean 'cnn'?"),
        ("CNN", "cnn, mlp, logistic, quadratic"),
        ("resnet", "'module:callable', got 'resnet'"),
        ("mymodel.py", "'module:callable', got 'mymodel.py'"),
        ("mymodel:", "'module:callable', got 'mymodel:'"),
        (":Net", "'module:callable', got ':Net'"),
        ("my model:Net", "'module:callable'"),
        ("mymodel:Net()", "'module:callable'"),
        ("mymodel::Net", "'module:callable'"),
        ("..mymodel:Net", "'module:callable'"),
        ("", "'module:callable'"),
    ],
)
def test_a_malformed_model_is_refused_with_the_expected_form(text, says):
    changed = template.SCENARIO.replace('model = "cnn"', f'model = "{text}"')
    assert changed != template.SCENARIO
    with pytest.raises(ScenarioError) as caught:
        scenario.parse(tomllib.loads(changed))
    message = str(caught.value)
    assert message.startswith(
        "learning.model must be one of cnn, mlp, logistic, quadratic, ridge, network, or your own as"
    )
    assert says in message
    assert message.endswith(".")
    assert "\n" not in message


def test_the_scenarios_folder_comes_before_the_working_directory(tmp_path, monkeypatch):
    beside, here = tmp_path / "beside", tmp_path / "here"
    code = UserCode.parse("mymodel:Net")
    for folder in (beside, here):
        folder.mkdir()
    monkeypatch.chdir(here)
    assert code.search_path(beside) == [beside, here]
    assert code.search_path(here) == [here]
    assert code.find(beside) is None
    (here / "mymodel.py").touch()
    assert code.find(beside) == here
    (beside / "mymodel.py").touch()
    assert code.find(beside) == beside
    assert UserCode.parse("../here/mymodel:Net").find(beside) == here
    assert UserCode.parse(f"{here}/mymodel:Net").find(beside) == here


def test_a_package_is_found_and_a_folder_of_that_name_is_none(tmp_path):
    (tmp_path / "nets").mkdir()
    assert UserCode.parse("nets:Net").find(tmp_path) is None
    (tmp_path / "nets" / "small.py").touch()
    assert UserCode.parse("nets.small:Net").find(tmp_path) == tmp_path
    (tmp_path / "nets" / "__init__.py").touch()
    assert UserCode.parse("nets:Net").find(tmp_path) == tmp_path


def test_a_recorded_scenario_means_the_same_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mymodel.py").touch()
    file = tmp_path / "s.toml"
    file.write_text(template.SCENARIO.replace('model = "cnn"', 'model = "mymodel:Net"'))
    loaded = scenario.load("s.toml")
    recorded = tmp_path / "run" / "scenario.toml"
    recorded.parent.mkdir()
    recorded.write_text(loaded.anchored().to_toml())
    monkeypatch.chdir("/")
    again = scenario.load(recorded)
    assert again.learning.model == f"{tmp_path}/mymodel:Net"
    assert UserCode.parse(again.learning.model).find(again.folder) == tmp_path
    assert again.anchored() == again
    assert again.content() == loaded.content()
    assert again.digest() == loaded.digest()
    other = loaded.override({"learning.model": "mymodel:Other"})
    assert other.digest() != loaded.digest()
