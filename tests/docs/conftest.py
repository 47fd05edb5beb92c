"""Fixtures of the tests of the docs."""

import pytest


@pytest.fixture(scope="session")
def words():
    """Return the page that the search must find first, by word of the field."""
    return {
        "CSI": "privacy-math",
        "AirComp": "model",
        "channel inversion": "model",
        "beamforming": "antennas",
        "block fading": "fading",
        "participation": "model",
        "noise multiplier": "privacy-math",
        "accountant": "privacy-math",
        "baseline": "baselines",
        "water-filling": "model",
        "DP-FedAvg": "baselines",
        "user-level DP": "privacy",
        "Gaussian DP": "privacy-math",
        "audit": "privacy-operators",
        "artificial noise": "baselines",
        "local DP": "baselines",
        "non-IID": "howto/data",
        "path loss": "presets",
        "pilot runs": "surrogate",
        "response surface": "surrogate",
        "secure aggregation": "baselines",
        "shadowing": "fading",
        "SNR": "presets",
        "threshold power control": "baselines",
    }
