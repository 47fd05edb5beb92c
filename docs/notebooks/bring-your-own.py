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
# Your channel trace, your data, your torch model, your policy: four files or functions, one scenario. Each replaces one box and leaves the others as they are.
#
# ![A scenario in the middle; four sockets: channel trace, data, model, policy](images/bring-your-own.svg)

# %% [markdown]
# ## A channel trace
#
# A channel sounder or a ray tracer writes complex amplitudes: a row for each round, a column for each device. We make one up: eight devices that walk past a receiver, with a shadow that two of them cross.

# %% alt="Gains of eight devices over twelve rounds; two of them fall by a factor of ten in the middle"
import matplotlib.pyplot as plt
import numpy as np

rng = np.random.default_rng(3)
rounds, devices = 12, 8
distance = (
    np.abs(np.linspace(-1.5, 1.5, rounds)[:, None] + rng.uniform(-0.5, 0.5, devices))
    + 0.5
)
trace = 1 / distance * np.exp(2j * np.pi * rng.random((rounds, devices)))
trace[4:8, :2] *= 0.1  # the shadow
np.save("trace.npy", trace)

plt.semilogy(np.arange(1, rounds + 1), np.abs(trace))
plt.xlabel("round")
plt.ylabel("gain |h|")
plt.show()

# %% [markdown]
# ## Data
#
# An `.npz` file with `train_images`, `train_labels`, `test_images`, `test_labels`. Ours: points of the plane in three spirals, something that a linear model cannot separate. Devices are dealt their
# share by `partition` (`iid`, or `dirichlet` for devices that differ).

# %% alt="Three spirals of points, a colour each"


def spirals(count, noise):
    """Return points of the plane on three arms, and the number of the arm of each."""
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
# Any callable without arguments that returns a torch module; it is named as `"file:callable"` and looked for beside the scenario. airfed finds its number of parameters by itself.

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
# The four come together in a TOML file. `airfed run mine.toml --out runs/mine` in a terminal does the same as the lines below.

# %%
import airfed

_ = Path("mine.toml").write_text("""
name = "mine"
[fleet]
num_devices = 8
peak_power = "30 dBm"           # or 1.0 [W]
[channel]
model = "file"
path = "trace.npy"
[link]
noise_std = 0.1
[budget]
epsilon = 200.0                 # eight devices cannot hide well; see the exercise
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
print(
    f"d = {run.plan.problem.learning.dimension}, accuracy {run.accuracy:.1%}, ε in "
    f"total {run.ledger.epsilon_total:.1f}"
)
assert run.plan.problem.learning.dimension == 2 * 24 + 24 + 24 * 24 + 24 + 24 * 3 + 3
assert run.accuracy > 0.6

# %% [markdown]
# Because the gains change, the plan is a sequence: who sends in each round is decided when the round comes.

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
# A function from a problem to devices. airfed takes the largest θ that every limit allows and checks everything else, so a poor policy gives a poor plan, but never one that spends more than the budget.
# This one schedules the devices that are at least half as strong as the strongest.

# %%


def near_the_best(problem, *, share=0.5):
    """Return the devices whose gain is at least a share of the largest."""
    gain = problem.fleet.gain
    return gain >= share * gain.max()


for name, policy, options in (
    ("optimal", "optimal", None),
    ("optimal, knowing all rounds", "clairvoyant", None),
    ("at least half of the best", near_the_best, None),
    ("nine tenths of the best", near_the_best, {"share": 0.9}),
    ("all devices", "full", None),
):
    found = scenario.plan(policy=policy, options=options)
    print(
        f"{name:27}: {found.sizes.mean():.1f} devices a round, noise "
        f"{found.noise_share:.3f}, ε in total {found.epsilon_total:5.1f}, "
        f"{found.power_total:4.1f} W"
    )
    assert found.epsilon_total <= 200.0 * (1 + 1e-9)
    assert found.power_total <= 60.0 * (1 + 1e-9)

# %% [markdown]
# In the scenario it is `[policy] name = "mypolicy:near_the_best"` with `options = {share = 0.9}`; `plan`, `compare`, `run`, `sweep` and `explore` all accept it.
#
# ## What you have seen
#
# | yours | how | more |
# |---|---|---|
# | channel | `[channel] model = "file"`, or `Fleet(gain=…)` | [Your own channel](../howto/channel.md) |
# | data | `[learning] dataset = "file.npz"` or a folder | [Your own data](../howto/data.md) |
# | model | `[learning] model = "file:callable"` | [Your own model](../howto/model.md) |
# | policy | `[policy] name = "file:callable"`, or `scenario.plan(policy=function)` | [Your own policy](../howto/policy.md) |
#
# ## Exercise
#
# ε = 200 is no privacy. Tile the trace so that there are 40 times as many devices (`np.tile(trace, (1, 40))`), keep the noise, give each device the same share of the total power, and plan for ε = 8 in total. What noise is left in the
# mean, compared with the eight devices at ε = 200? (`plan.noise_share` tells.)

# %% tags=["solution"]
np.save("crowd.npy", np.tile(trace, (1, 40)))
few = scenario.plan()
crowd = scenario.override(
    {
        "fleet.num_devices": 320,
        "channel.path": "crowd.npy",
        "budget.epsilon": 8.0,
        "budget.total_power": 60.0 * 40,
    }
).plan()
for name, each in (("8 devices, ε = 200", few), ("320 devices, ε = 8", crowd)):
    print(
        f"{name}: ε in total {each.epsilon_total:.1f}, noise in the mean "
        f"{each.noise_share:.4f}"
    )
assert crowd.epsilon_total <= 8.0 * (1 + 1e-9)
assert crowd.noise_share < 0.25 * few.noise_share
