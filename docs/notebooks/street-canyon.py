# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A published channel: street canyon
#
# airfed reads traces: gains over rounds and devices, from a channel sounder, a ray tracer or a published model. This
# notebook writes a trace by the formulas of 3GPP TR 38.901 for an urban micro cell in a street canyon (UMi), plans on
# it, trains, and reports.
#
# ![Devices walk along a street past a base station; the trace has a gain for each device in each round](images/street-canyon.svg)

# %% [markdown]
# ## The street
#
# Eighty devices walk at 3 km/h along both sidewalks of a straight street, past a base station at height 10 m. A round
# takes place every two seconds. Heights, speed and carrier lie in the ranges of TR 38.901; the street (±200 m, the
# sidewalks at 10 m), the time between rounds, and the radio below are ours.

# %%
import numpy as np

rng = np.random.default_rng(1)
rounds, devices = 20, 80
carrier = 3.5  # GHz
base_height, device_height = 10.0, 1.5  # m
light = 299_792_458.0  # m/s
step = 3 / 3.6 * 2.0  # m per round

direction = rng.choice([-1, 1], devices)
along = rng.uniform(-200, 200, devices) + step * direction * np.arange(rounds)[:, None]
across = np.broadcast_to(10.0 * rng.choice([-1, 1], devices), along.shape)
distance = np.hypot(along, across)
print(f"distances of {distance.min():.0f} to {distance.max():.0f} m")

# %% [markdown]
# ## Path loss and line of sight
#
# Table 7.4.1-1 of TR 38.901 has the path loss in dB, with $f$ in GHz, $d$ in metres,
# $D = \sqrt{d^2 + (h_b - h_m)^2}$ and the break point $d_B = 4(h_b - 1)(h_m - 1)f/c$ ($f$ in Hz):
#
# $$
# L_\text{LOS} = 32.4 + 20\lg f + \begin{cases} 21\lg D & d \le d_B\\
# 40\lg D - 9.5\lg(d_B^2 + (h_b - h_m)^2) & d > d_B \end{cases}
# $$
#
# $$
# L_\text{NLOS} = \max\{L_\text{LOS},\ 22.4 + 35.3\lg D + 21.3\lg f - 0.3(h_m - 1.5)\}
# $$
#
# A device has a line of sight with the probability of table 7.4.2-1:
# $18/d + e^{-d/36}(1 - 18/d)$ beyond 18 m, and 1 below.

# %% alt="Path loss over the distance with and without a line of sight, and the probability of a line of sight, which falls from 1 to 0.2 within 100 metres"
import matplotlib.pyplot as plt

lift = base_height - device_height


def loss_with_sight(d):
    """Return the path loss with a line of sight [dB]."""
    edge = 4 * (base_height - 1) * (device_height - 1) * carrier * 1e9 / 3e8
    near = 21 * np.log10(np.hypot(d, lift))
    far = 40 * np.log10(np.hypot(d, lift)) - 9.5 * np.log10(edge**2 + lift**2)
    return 32.4 + 20 * np.log10(carrier) + np.where(d <= edge, near, far)


def loss_without_sight(d):
    """Return the path loss without a line of sight [dB]."""
    blocked = 22.4 + 35.3 * np.log10(np.hypot(d, lift)) + 21.3 * np.log10(carrier)
    return np.maximum(loss_with_sight(d), blocked - 0.3 * (device_height - 1.5))


def sight_probability(d):
    """Return the probability of a line of sight."""
    return np.where(d <= 18, 1.0, 18 / d + np.exp(-d / 36) * (1 - 18 / d))


d = np.linspace(10, 250, 200)
figure, (left, right) = plt.subplots(1, 2)
left.plot(d, loss_with_sight(d), label="line of sight")
left.plot(d, loss_without_sight(d), label="none")
left.set_xlabel("distance [m]")
left.set_ylabel("path loss [dB]")
left.legend()
right.plot(d, sight_probability(d))
right.set_xlabel("distance [m]")
right.set_ylabel("probability of a line of sight")
plt.show()

# %% [markdown]
# airfed has the same path loss as a channel model (`model = "path_loss"`), so the formulas check each other:

# %%
from airfed.channel.path_loss import PATH_LOSS_MODELS

place = {"base_height": base_height, "device_height": device_height}
place["frequency"] = carrier * 1e9
assert np.allclose(loss_with_sight(d), PATH_LOSS_MODELS["umi_los"].loss(d, **place))
assert np.allclose(loss_without_sight(d), PATH_LOSS_MODELS["umi_nlos"].loss(d, **place))

# %% [markdown]
# ## Shadowing that moves with the devices
#
# Shadowing is log-normal, with 4 dB in line of sight and 7.82 dB without. It is correlated in space: by
# $e^{-\Delta/d_c}$ over a distance of $\Delta$, with $d_c$ = 10 m and 13 m (table 7.5-6). Whether there is a line of
# sight is correlated as well, with $d_c$ = 50 m (table 7.6.3.1-2). Neighbours and consecutive rounds therefore see
# similar channels. One Gaussian field over all places of all devices has this covariance:

# %%
from scipy.special import ndtr

places = np.stack([along.ravel(), across.ravel()], axis=1)
apart = np.linalg.norm(places[:, None] - places, axis=-1)


def field(correlation_distance):
    """Return a standard normal number for each round and device, correlated in space."""
    covariance = np.exp(-apart / correlation_distance) + 1e-9 * np.eye(len(places))
    normal = np.linalg.cholesky(covariance) @ rng.standard_normal(len(places))
    return normal.reshape(along.shape)


sight = ndtr(field(50.0)) < sight_probability(distance)
shadowing = np.where(sight, 4.0 * field(10.0), 7.82 * field(13.0))
print(f"line of sight: {sight.mean():.0%} of all rounds and devices")

# %% [markdown]
# ## Fading
#
# Without a line of sight, 32 plane waves from all directions with random phases arrive at a device. They give Rayleigh
# fading with the correlation of Clarke's model over time and space. A device walks twenty wavelengths between rounds,
# so little correlation is left. In line of sight a direct wave is added, with a Rice factor of 9 ± 5 dB (table 7.5-6),
# drawn once for each device.

# %% alt="Gains in dB of four devices over the rounds; they move slowly with the distance, jump when the line of sight ends, and fade in each round"
number = 2 * np.pi * carrier * 1e9 / light  # wave number [1/m]
angle, phase = rng.uniform(0, 2 * np.pi, (2, 32, 1, devices))
waves = np.exp(1j * (number * along * np.cos(angle) + phase))
scattered = waves.sum(axis=0) / np.sqrt(32)
direct = np.exp(-1j * number * np.hypot(distance, lift))
rice = 10 ** (rng.normal(9.0, 5.0, devices) / 10)
mixed = np.sqrt(rice / (rice + 1)) * direct + np.sqrt(1 / (rice + 1)) * scattered
fading = np.where(sight, mixed, scattered)
assert abs(np.mean(np.abs(scattered) ** 2) - 1) < 0.1

loss = np.where(sight, loss_with_sight(distance), loss_without_sight(distance))
trace = 10 ** (-(loss + shadowing) / 20) * fading
np.save("trace.npy", trace)

plt.plot(np.arange(1, rounds + 1), 20 * np.log10(np.abs(trace[:, :4])))
plt.xlabel("round")
plt.ylabel("gain |h|² [dB]")
plt.show()

# %% [markdown]
# Left out of TR 38.901: delays, angles and polarisation (its clusters and rays), antenna patterns, indoor devices,
# and the correlations between shadowing and Rice factor. Our fading is narrow-band and has no delay.
#
# ## Plan on the trace
#
# The receiver has thermal noise in 20 MHz and a noise figure of 5 dB. The scenario is $\varepsilon = 8$ for the whole
# training. First each device may send 23 dBm in every symbol, as phones do; then −20 dBm, as a sensor on a small
# battery might.

# %%
from pathlib import Path

import airfed

_ = Path("street.toml").write_text("""
name = "street"
[fleet]
num_devices = 80
peak_power_per_symbol = "23 dBm"
[channel]
model = "file"
path = "trace.npy"
[link]
bandwidth = "20 MHz"
noise_figure = 5.0
[budget]
epsilon = 8.0
delta = 1e-3
scope = "total"
total_power = 1000.0
[learning]
dataset = "mnist-5k"
model = "logistic"
total_steps = 120
learning_rate = 0.1
clip_norm = 2.0
smoothness = 10.0
strong_convexity = 0.1
initial_gap = 2.3
[policy]
rounds = 20
""")
phones = airfed.load("street.toml")
sensors = phones.override({"fleet.peak_power_per_symbol": "-20 dBm"})

noise = {}
for name, scenario in (("phones", phones), ("sensors", sensors)):
    for policy in ("optimal", "weighted", "full"):
        plan = scenario.plan(policy=policy)
        noise[name, policy] = plan.noise_share
        print(
            f"{name}, {policy:8}: {plan.sizes.mean():4.1f} devices per round, noise "
            f"{plan.noise_share:.3f}, limit {plan.binding}"
        )
assert noise["phones", "full"] < 1.001 * noise["phones", "optimal"]
assert noise["sensors", "full"] > 2 * noise["sensors", "optimal"]
assert noise["sensors", "weighted"] < noise["sensors", "optimal"]

# %% [markdown]
# With 23 dBm every device reaches the amplitude that privacy allows, in every round: the radio costs nothing, and all
# policies agree. With −20 dBm, `full` lowers all devices to the weakest one of the round, which is behind a corner and
# in a fade. `optimal` leaves out a few devices in each round; `weighted` receives them with less amplitude.
#
# ## Train and report
#
# Each training takes a few seconds.

# %% alt="Test accuracy over the rounds of the sensors: the plans of optimal and weighted rise, full participation stays far below"
runs = {}
for policy in ("optimal", "weighted", "full"):
    scenario = sensors.vary({"policy.name": policy})
    run = runs[policy] = airfed.run(scenario, policy, progress=False)
    print(
        f"{policy:8}: accuracy {run.accuracy:.1%}, ε in total "
        f"{run.ledger.epsilon_total:.2f}, {run.ledger.power_metered:.1f} W sent"
    )
    assert run.ledger.epsilon_total <= 8.0
    plt.plot(*run.series("accuracy"), label=policy)
plt.xlabel("round")
plt.ylabel("test accuracy")
plt.legend()
plt.show()
assert runs["full"].accuracy < runs["optimal"].accuracy

# %%
report = runs["optimal"].report("report.html")
print(f"{report.name}: {report.stat().st_size / 1e3:.0f} kB in one file")

# %% [markdown]
# One seed and one street: the notebook shows how a trace enters, not which policy is best in street canyons.
#
# ## Summary
#
# - A trace is an array of rounds × devices, real gains or complex amplitudes, in `.npy` or `.csv`.
# - `bandwidth`, `noise_figure` and `peak_power_per_symbol` give it an absolute scale.
# - The plan is causal: it uses the gains of a round only from that round on.
#
# ## Exercise
#
# Between −20 and 23 dBm, where does the radio stop to cost anything? Plan `full` for several powers and compare its
# noise with that of the phones.

# %% tags=["solution"]
for power in (-20, -10, 0, 10, 23):
    changed = phones.override({"fleet.peak_power_per_symbol": f"{power} dBm"})
    share = changed.plan(policy="full").noise_share
    print(f"{power:3} dBm: noise {share / noise['phones', 'full']:.2f} times as large")
assert share == noise["phones", "full"]
