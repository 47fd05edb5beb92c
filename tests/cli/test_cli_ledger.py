"""airfed ledger and airfed audit, as a user sees them."""

import json

import pytest

from airfed.cli import main
from airfed.training.execution import execute

NAMES = {"verdict", "mu_claimed", "mu_lower", "epsilon_claimed", "epsilon_lower"}


@pytest.fixture
def run(make_scenario, tmp_path):
    execute(make_scenario(), tmp_path / "run")
    return tmp_path / "run"


def test_the_ledger_is_printed_within_80_columns(run, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["ledger", str(run)]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    for word in (
        "verified",
        "simulated",
        "δ = 1e-5, device-level, replace-one adjacency",
        "W sent",
        "100.0% of ε = 3",
    ):
        assert word in shown


def test_a_long_ledger_shows_both_ends(make_scenario, tmp_path, capsys):
    execute(make_scenario(learning__total_steps=40, policy__rounds=40, budget__scope="round"), tmp_path / "run")
    assert main(["ledger", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr().out
    assert "…" in shown
    rows = [line.split()[0] for line in shown.splitlines() if line[:5].strip().isdigit()]
    assert rows == ["1", "2", "3", "4", "5", "36", "37", "38", "39", "40"]


def test_the_ledger_as_json(run, capsys):
    assert main(["ledger", str(run), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["verified"] is True
    assert summary["charged"] == summary["trained"] == len(summary["rounds"]) == 8
    assert summary["epsilon_total"] == summary["rounds"][-1]["epsilon_total"] <= 3.0
    assert (summary["unit"], summary["adjacency"], summary["privacy"]) == ("device", "replace_one", "simulated")


def test_a_tampered_ledger_is_one_sentence_and_exit_code_4(run, capsys):
    path = run / "ledger.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"devices": 6', b'"devices": 1', 1))
    assert main(["ledger", str(run)]) == 4
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert "line 2 or a line before it was changed" in captured.err
    assert main(["ledger", str(run), "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["verified"] is False


def test_a_directory_without_a_run_is_a_user_mistake(tmp_path, capsys):
    assert main(["ledger", str(tmp_path)]) == 2
    assert main(["audit", str(tmp_path / "missing.toml")]) == 2
    assert main(["audit", str(tmp_path)]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_an_audit_passes_with_0_and_draws(run, tmp_path, capsys):
    picture = tmp_path / "roc.png"
    assert main(["audit", str(run), "--trials", "3000", "--json", "--plot", str(picture)]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert set(summary) >= NAMES
    assert summary["verdict"] == "pass"
    assert 0 < summary["mu_lower"] <= summary["mu_claimed"] * 1.2
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_a_run_that_cannot_be_written_to_is_audited_all_the_same(run, capsys):
    (run / "audit.json").mkdir()
    assert main(["audit", str(run), "--trials", "1000", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["verdict"] == "pass"
    assert captured.err == f"airfed: not kept for the report: {run / 'audit.json'}: Is a directory.\n"


def test_an_audit_fails_with_4(make_scenario, tmp_path, capsys):
    scenario = make_scenario(fleet__num_devices=40, channel__csi_error=0.1, channel__assume_perfect_csi=True)
    (tmp_path / "s.toml").write_text(scenario.to_toml())
    assert main(["audit", str(tmp_path / "s.toml"), "--trials", "3000"]) == 4
    shown = capsys.readouterr().out
    assert "FAIL sensitivity" in shown
    assert "A check fails if its value is above the threshold; a p fails below it." in shown
    assert "assumes Gaussian scores" in shown
    assert "not attacked: the trained model, the engines, Flower's path" in shown
    assert "fail:" in shown
    assert main(["audit", str(tmp_path / "s.toml"), "--trials", "3000", "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["verdict"] == "fail"


@pytest.mark.parametrize("wrong", [["--trials", "0"], ["--seed", "-1"], ["--plot", "x.nonsense"]])
def test_wrong_options_are_the_users_mistake(make_scenario, tmp_path, wrong, capsys):
    (tmp_path / "s.toml").write_text(make_scenario().to_toml())
    assert main(["audit", str(tmp_path / "s.toml"), "--trials", "100", *wrong]) == 2


def test_a_private_run_prints(make_scenario, tmp_path, capsys):
    (tmp_path / "s.toml").write_text(make_scenario(run__record="private").to_toml())
    assert main(["run", str(tmp_path / "s.toml"), "--out", str(tmp_path / "run")]) == 0
    assert main(["ledger", str(tmp_path / "run")]) == 0
    assert "W sent" in capsys.readouterr().out


def test_a_private_run_is_reported(make_scenario, tmp_path, capsys):
    execute(make_scenario(run__record="private", channel__csi_error=0.01), tmp_path / "run")
    assert main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "report.html")]) == 0
    assert "transmitted" not in (tmp_path / "report.html").read_text().split("<script")[0]


def test_a_refuted_claim_against_another_adversary_is_reported_as_such(make_scenario, tmp_path, capsys):
    (tmp_path / "s.toml").write_text(make_scenario(link__antennas=4, link__adversary="combined").to_toml())
    assert main(["audit", str(tmp_path / "s.toml"), "--trials", "2000", "--against", "all_antennas"]) == 4
    out = capsys.readouterr().out
    text = " ".join(out.split())
    assert "adversary: a server that keeps every antenna's signal" in text
    assert "claimed at δ" in text
    assert "against a server that receives the combined signal only" in text
    assert "failed; the claim is made against another adversary" in text
    checks = out[: out.index("A check fails if")].splitlines()[2:]
    assert all(line.startswith(("ok   ", "FAIL ", "     ")) for line in checks if line.strip()), out
    assert all(len(line) <= 80 for line in out.splitlines())
