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
# # Plan, pilot, train
#
# The convergence bound compares devices and amplitudes without any training. It is a worst case, however: it does
# not predict the accuracy and cannot choose the clipping norm. An *accuracy surrogate*, fitted once to pilot runs on
# public data, does both. This notebook plans one scenario by the bound and by the surrogate, trains both plans and
# compares the accuracies.
#
# ![A scenario is planned by the bound and by the surrogate; both plans are trained; predicted and realised accuracy are compared](images/plan-pilot-train.svg)

# %% [markdown]
# ## The scenario
#
# A hundred devices with 40 images of digits each train a logistic regression with 7,850 parameters. The budget is
# $\varepsilon = 8$ for the *whole* training at $\delta = 0.001$.

# %%
import tomllib

import airfed
from airfed.scenario import parse

scenario = parse(
    tomllib.loads("""
name = "digits"
seed = 0
fleet = {num_devices = 100, peak_power = 1.0}
channel = {model = "rayleigh", minimum = 0.1}
link = {noise_std = 1.0}
budget = {epsilon = 8.0, delta = 1e-3, scope = "total", total_power = 1000.0}
policy = {name = "optimal", objective = "bound"}

[learning]
dataset = "mnist-5k"
model = "logistic"
total_steps = 200
learning_rate = 0.1
clip_norm = 5.0
smoothness = 10.0
strong_convexity = 0.1
initial_gap = 2.3
""")
)

# %% [markdown]
# ## Plan by the bound
#
# Theorem 1 bounds the distance to the smallest possible loss by four terms: the remaining initial gap, partial
# participation, the drift of the local steps, and the receiver's noise. The plan also has the noise per coordinate of
# the recovered mean, relative to the clipping norm $\varpi$: $s = \sigma/(K\theta)$ for $K$ aligned devices.

# %%
by_bound = scenario.plan()
print(
    f"{by_bound.num_scheduled} devices, {by_bound.rounds} rounds, ϖ = "
    f"{by_bound.clip_norm}, s = {by_bound.noise_share:.4f}"
)
for term, value in by_bound.bound.terms.items():
    print(f"  {term:14} {value:8.1f}")
print(f"  {'total':14} {by_bound.bound.total:8.1f}")
print(f"loss before training: about {scenario.learning.initial_gap}")
assert by_bound.bound.total > 1000 * scenario.learning.initial_gap

# %% [markdown]
# The bound is a thousand times the loss before training. Such a value does not mean that training fails, only that
# the theorem cannot exclude it. The bound is still useful to compare plans with the same $\varpi$.
#
# ## Plan by an accuracy surrogate
#
# The radio affects learning through the one number $s = \sigma/(K\theta)$. Short *pilot runs* on public data, over a
# grid of rounds $I$, clipping norms $\varpi$ and noise levels $s$, therefore predict the accuracy over any channel.
# `airfed pilot` runs them and writes a table. airfed includes such tables; this one matches the scenario:

# %% alt="Predicted accuracy over the noise for four pairs of rounds and clipping norm: many rounds with a large clipping norm are best at low noise and collapse at high noise"
from importlib import resources

import matplotlib.pyplot as plt
import numpy as np

from airfed.planning import load_surrogate

table = resources.files("airfed") / "surrogates" / "mnist-5k-logistic-40.json"
with resources.as_file(table) as path:
    surrogate = load_surrogate(path)
print(f"grid: rounds {surrogate.rounds}, ϖ {surrogate.clip_norm}")
print(f"noise from {surrogate.noise[0]} to {surrogate.noise[-1]}")

noise = np.geomspace(surrogate.noise[0], surrogate.noise[-1], 80)
small, large = surrogate.clip_norm[1], surrogate.clip_norm[-1]
for rounds, clip_norm in ((200, large), (40, large), (40, small), (10, small)):
    accuracy = surrogate.predict(rounds=rounds, clip_norm=clip_norm, noise=noise)
    plt.semilogx(
        noise, 100 * accuracy[..., 0], label=f"I = {rounds}, ϖ = {clip_norm:g}"
    )
plt.xlabel("noise s = σ/(Kθ)")
plt.ylabel("predicted accuracy [%]")
plt.legend()
plt.show()

# %% [markdown]
# No pair $(I, \varpi)$ is best at every noise level. With `objective = "accuracy"` the plan maximises the predicted
# accuracy over all devices, $\theta$, $I$ and $\varpi$ that the budgets allow. By default airfed takes a surrogate of
# another data set. This one was fitted to the devices' own data set, which is fine in a simulation, and the plan says
# so:

# %%
chosen = {"policy.objective": "accuracy", "policy.surrogate": "mnist-5k-logistic-40"}
with_surrogate = scenario.override(chosen)
by_surrogate = with_surrogate.plan()
print(*by_surrogate.notes)
print(
    f"{by_surrogate.num_scheduled} devices, {by_surrogate.rounds} rounds, ϖ = "
    f"{by_surrogate.clip_norm}, s = {by_surrogate.noise_share:.4f}"
)
predicted = {
    "bound": by_bound.predicted_accuracy,
    "surrogate": by_surrogate.predicted_accuracy,
}
for name, accuracy in predicted.items():
    print(f"predicted accuracy of the plan by the {name}: {accuracy:.1%}")
assert predicted["surrogate"] >= predicted["bound"]

# %% [markdown]
# ## Train both plans
#
# Both runs use the same channels, the same data and the same initial model. Each takes a few seconds. Every round is
# charged, clipped, aligned, superposed and received with noise.

# %%
runs = {
    "bound": airfed.run(scenario, "bound", progress=False),
    "surrogate": airfed.run(with_surrogate, "surrogate", progress=False),
}
for name, run in runs.items():
    print(
        f"{name:9}: predicted {predicted[name]:.1%}, realised {run.accuracy:.1%};  ε "
        f"in total {run.ledger.epsilon_total:.3f}, planned power "
        f"{run.ledger.power_planned:.0f} W"
    )
    assert abs(run.accuracy - predicted[name]) < 0.05
    assert run.ledger.epsilon_total <= 8.0
assert runs["surrogate"].accuracy >= runs["bound"].accuracy - 0.01

# %% alt="Test accuracy over the rounds of both runs: the plan by the surrogate has fewer rounds"
for name, run in runs.items():
    rounds, accuracy = run.series("accuracy")
    plt.plot(rounds, 100 * accuracy, label=f"plan by the {name}")
plt.xlabel("round (both plans have 200 local steps)")
plt.ylabel("test accuracy [%]")
plt.legend()
plt.show()

# %% [markdown]
# Both runs spend the same $\varepsilon = 8$ in total. The surrogate's plan divides this budget among half as many
# rounds, so each round has a larger $\theta$ and less noise. This is one seed, with pilot runs on the same data set.
# [Accuracy surrogate](../surrogate.md#how-far-to-trust-it) shows how accurate the predictions are in six scenarios.
#
# > **Public data only.** Pilot runs have no privacy protection and must never use the devices' own data. A clipping
# > norm that was chosen on private data is itself a release of that data.
#
# ## Summary
#
# - The bound needs only constants. It compares devices and amplitudes at a given number of rounds and clipping norm,
#   and its value is far above the realised loss.
# - A surrogate is fitted once, applies to every channel and budget, and predicts the accuracy with an interval.
# - The ledger confirms that both runs spent the same $\varepsilon$.
#
# ## Exercise
#
# Plan for a stricter budget, $\varepsilon = 2$ in total. Does the plan by the surrogate have more or fewer rounds,
# and a larger or smaller $\varpi$? What accuracy does it predict? Answer from the plot first, then plan. No training
# is needed.

# %% tags=["solution"]
strict = with_surrogate.override({"budget.epsilon": 2.0}).plan()
for name, each in (("ε = 8", by_surrogate), ("ε = 2", strict)):
    print(
        f"{name}: {each.num_scheduled} devices, {each.rounds} rounds, ϖ = "
        f"{each.clip_norm}, s = {each.noise_share:.4f}, predicted accuracy "
        f"{each.predicted_accuracy:.1%}"
    )
assert strict.rounds < by_surrogate.rounds
assert strict.clip_norm < by_surrogate.clip_norm
assert strict.predicted_accuracy < by_surrogate.predicted_accuracy
