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
# # Bring your own
#
# You can plan and train with your own channel trace, data, torch model and policy. Each is a file or a function that
# replaces one part of a scenario; the other parts stay as they are.
#
# ![A scenario in the middle, with four inputs: channel trace, data, model and policy](images/bring-your-own.svg)

# %% [markdown]
# ## A channel trace
#
# A channel sounder or a ray tracer writes complex channel coefficients, with one row per round and one column per
# device. This notebook generates a trace: eight devices pass a receiver, and two of them are shadowed for four
# rounds.

# %% alt="Gains of eight devices over twelve rounds; two of them drop by a factor of ten in the middle"
import matplotlib.pyplot as plt
import numpy as np

rng = np.random.default_rng(3)
rounds, devices = 12, 8
position = np.linspace(-1.5, 1.5, rounds)[:, None] + rng.uniform(-0.5, 0.5, devices)
distance = np.abs(position) + 0.5
trace = 1 / distance * np.exp(2j * np.pi * rng.random((rounds, devices)))
trace[4:8, :2] *= 0.1  # shadowing
np.save("trace.npy", trace)

plt.semilogy(np.arange(1, rounds + 1), np.abs(trace))
plt.xlabel("round")
plt.ylabel("gain |h|")
plt.show()

# %% [markdown]
# ## Data
#
# Data come as an `.npz` file with `train_images`, `train_labels`, `test_images` and `test_labels`. This data set has
# points on three spirals, which a linear model cannot separate. The key `partition` determines how the training data
# are partitioned among the devices: `iid`, or `dirichlet` for heterogeneous devices.

# %% alt="Points on three spirals, one colour per spiral"


def spirals(count, noise):
    """Return points on three spirals and the index of the spiral of each."""
    label = rng.integers(0, 3, count)
    radius = np.sqrt(rng.random(count))
    angle = 2.5 * radius + label * 2 * np.pi / 3
    points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return (points + rng.normal(0, noise, points.shape)).astype(np.float32), label


train, test = spirals(2400, 0.04), spirals(600, 0.04)
np.savez(
    "spirals.npz",
    train_images=train[0],
    train_labels=train[1],
    test_images=test[0],
    test_labels=test[1],
)

plt.figure(figsize=(4, 3.6))
plt.scatter(*train[0].T, c=train[1], s=4, cmap="viridis")
plt.gca().set_aspect("equal")
plt.show()

# %% [markdown]
# ## A model
#
# A model is a function without arguments that returns a torch module. The scenario names it as `"module:callable"`,
# and airfed looks for the module in the scenario's folder. airfed determines the number of parameters $d$ itself.

# %%
from pathlib import Path

_ = Path("mymodel.py").write_text("""
from torch import nn

def spiral_net():
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(2, 24), nn.Tanh(),
        nn.Linear(24, 24), nn.Tanh(),
        nn.Linear(24, 3),
    )
""")

# %% [markdown]
# ## The scenario
#
# A TOML file names the trace, the data and the model. In a terminal, `airfed run mine.toml --out mine` does the same
# as the call of `airfed.run` below.

# %%
import airfed

_ = Path("mine.toml").write_text("""
name = "mine"
[fleet]
num_devices = 8
peak_power = "30 dBm"           # or 1.0 [W], summed over the symbols of an upload
[channel]
model = "file"
path = "trace.npy"
[link]
noise_std = 0.1
[budget]
epsilon = 200.0                 # no real protection; see the exercise
delta = 1e-3
scope = "total"
total_power = 60.0
[learning]
dataset = "spirals.npz"
model = "mymodel:spiral_net"
total_steps = 480
learning_rate = 0.5
clip_norm = 5.0
smoothness = 2.0
strong_convexity = 0.1
initial_gap = 1.1
[policy]
rounds = 12
""")
scenario = airfed.load("mine.toml")
run = airfed.run(scenario, "mine", progress=False)
dimension = run.plan.problem.learning.dimension
print(
    f"d = {dimension}, accuracy {run.accuracy:.1%}, ε in total "
    f"{run.ledger.epsilon_total:.1f}"
)
assert dimension == 2 * 24 + 24 + 24 * 24 + 24 + 24 * 3 + 3
assert run.accuracy > 0.6

# %% [markdown]
# The gains vary from round to round, so the plan has its own devices and its own $\theta$ in each round. The plan is
# causal: it uses the gains of a round only from that round on.

# %%
for each in run.plan.sequence:
    print(
        f"round {each.index + 1:2}: devices {each.scheduled.tolist()}, θ = "
        f"{each.alignment:.4f}"
    )
assert any(0 not in each.scheduled for each in run.plan.sequence)

# %% [markdown]
# ## A policy
#
# A policy is a function from a `Problem` to the devices that it schedules. airfed then takes the largest $\theta$
# that all limits allow. A poor policy therefore gives a poor plan, but no plan exceeds a budget. This policy
# schedules the devices whose gain is at least a given fraction of the largest gain.

# %%


def near_the_best(problem, *, fraction=0.5):
    """Return a mask of the devices with at least a fraction of the largest gain."""
    gain = problem.fleet.gain
    return gain >= fraction * gain.max()


for name, policy, options in (
    ("optimal", "optimal", None),
    ("clairvoyant", "clairvoyant", None),
    ("half of the largest gain", near_the_best, None),
    ("0.9 of the largest gain", near_the_best, {"fraction": 0.9}),
    ("full participation", "full", None),
):
    plan = scenario.plan(policy=policy, options=options)
    print(
        f"{name:24}: {plan.sizes.mean():.1f} devices per round, noise "
        f"{plan.noise_share:.3f}, ε in total {plan.epsilon_total:5.1f}, "
        f"{plan.power_total:4.1f} W"
    )
    assert plan.epsilon_total <= 200.0 * (1 + 1e-9)
    assert plan.power_total <= 60.0 * (1 + 1e-9)

# %% [markdown]
# To use the policy in a scenario, save it in `mypolicy.py` and set `[policy] name = "mypolicy:near_the_best"` and
# `options = {fraction = 0.9}`. The commands `plan`, `compare`, `run`, `sweep` and `explore` accept it.
#
# ## Summary
#
# | part | how | more |
# |---|---|---|
# | channel | `[channel] model = "file"`, or `Fleet(gain=…)` | [Your own channel](../howto/channel.md) |
# | data | `[learning] dataset = "file.npz"` or a folder | [Your own data](../howto/data.md) |
# | model | `[learning] model = "module:callable"` | [Your own model](../howto/model.md) |
# | policy | `[policy] name = "module:callable"`, or `scenario.plan(policy=function)` | [Your own policy](../howto/policy.md) |
#
# ## Exercise
#
# $\varepsilon = 200$ is no protection. Repeat the trace for 40 times as many devices (`np.tile(trace, (1, 40))`),
# keep the receiver's noise and the total power per device, and plan for $\varepsilon = 8$ in total. How large is the
# noise in the mean, compared with eight devices at $\varepsilon = 200$? `plan.noise_share` is this noise relative to
# $\varpi$.

# %% tags=["solution"]
np.save("large.npy", np.tile(trace, (1, 40)))
small_fleet = scenario.plan()
large_fleet = scenario.override(
    {
        "fleet.num_devices": 320,
        "channel.path": "large.npy",
        "budget.epsilon": 8.0,
        "budget.total_power": 60.0 * 40,
    }
).plan()
for name, each in (("8 devices", small_fleet), ("320 devices", large_fleet)):
    print(
        f"{name:11}: ε in total {each.epsilon_total:5.1f}, noise in the mean "
        f"{each.noise_share:.4f}"
    )
assert large_fleet.epsilon_total <= 8.0 * (1 + 1e-9)
assert large_fleet.noise_share < 0.25 * small_fleet.noise_share
