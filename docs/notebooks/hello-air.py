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
# # Hello air
#
# Two devices, one sum, one noise. By the end you will know what over-the-air averaging is, why it is private by nature,
# and what ε costs. No background in radio or in privacy is needed; NumPy is.
#
# ![Two devices transmit at the same time; their waves add up in the air, noise is added, the receiver divides by two](images/hello-air.svg)

# %% [markdown]
# ## The job
#
# Two phones have each computed a number from their own data: an *update* to a model that they train together. The server wants
# the **mean** of both and nothing else.

# %%
import numpy as np

updates = np.array([0.8, -0.2])
print("wanted:", round(updates.mean(), 6))

# %% [markdown]
# The usual way: each phone sends its number in a slot of its own, the server adds up. With a thousand phones that takes a
# thousand slots, and the server sees every number.
#
# ## Let the air add up
#
# Radio waves that arrive together *add*. If both phones transmit in the same slot, the receiver hears
#
# > y = h₁x₁ + h₂x₂ + r
#
# where x is what a phone sends, h (the **channel gain**) is how much of it arrives, and r is the receiver's thermal **noise**, drawn from
# N(0, σ²). The sum is what we want, but the gains distort it. So each phone divides by its own gain first: it sends
# x = (θ/h)·u, and both arrive equally strong, at amplitude θ. That is called **alignment**.

# %%
gain = np.array([0.5, 1.0])  # phone 0 is further away
theta, sigma = 0.5, 1.0  # θ: how strongly both arrive; σ: noise
rng = np.random.default_rng(0)

sent = theta / gain * updates
received = gain @ sent + rng.normal(0, sigma)
estimate = received / (2 * theta)
print("power of each phone:", sent**2)
print("received:", round(received, 3), "→ estimated mean:", round(estimate, 3))

# %% [markdown]
# One slot instead of two. But this one estimate is poor: the noise is as large as the signal. How poor? The noise is divided
# by 2θ together with everything else, so the error has the standard deviation σ/(2θ). Let us see whether that is so:

# %%
many = (theta * updates.sum() + rng.normal(0, sigma, 100_000)) / (2 * theta)
print(
    "mean of all estimates:",
    round(many.mean(), 3),
    "  spread:",
    round(many.std(), 3),
    "  σ/(2θ):",
    sigma / (2 * theta),
)
assert abs(many.mean() - updates.mean()) < 0.02
assert abs(many.std() / (sigma / (2 * theta)) - 1) < 0.02

# %% [markdown]
# Right on average, noisy each time. With K phones the error is σ/(Kθ): **every phone more makes the noise matter less.** And a training
# averages over thousands of coordinates and dozens of rounds.
#
# ## The same with airfed
#
# `Problem` is the situation, `plan` the decision, `Air` the arithmetic that real runs use. An update is clipped to the norm
# ϖ = `clip_norm` first (here 1), so that θ is a promise: nobody ever arrives more strongly.

# %%
from airfed import Budget, Fleet, Learning, Link, Problem, plan
from airfed.aircomp import Air

problem = Problem(
    fleet=Fleet(gain=gain, peak_power=1.0),  # 1 W each at most
    link=Link(noise_std=sigma),
    learning=Learning(
        dimension=1,
        total_steps=1,
        clip_norm=1.0,
        learning_rate=0.1,
        smoothness=10.0,
        strong_convexity=0.1,
        initial_gap=2.3,
    ),
    budget=Budget(epsilon=5.0, delta=1e-3, total_power=100.0),
)
decision = plan(problem, policy="full")
print(
    "θ =",
    round(decision.alignment, 6),
    "held by",
    decision.binding,
    "  power [W]:",
    decision.power,
)

one_round = Air.from_plan(decision).open_round(dimension=1)
one_round.add(np.array([0, 1]), updates[:, None])
print("without noise the receiver finds", one_round.receive(np.zeros(1)).estimate)
assert decision.binding == "peak_power"
assert np.isclose(decision.alignment, theta)

# %% [markdown]
# θ = 0.5, because phone 0, whose gain is 0.5, cannot do better with 1 W: 0.5·√1 = 0.5. Its neighbour could arrive twice as strongly, and
# must not. [The next notebook](weakest-device.md) is about that.
#
# ## Why this is private
#
# Now look at it as somebody who is curious about phone 0, and who hears everything: the received y, and even phone 1's number. They ask
# only one thing: did phone 0 send +1 or −1, the two most different updates there are? What they hear is one of two bells, a
# distance of 2θ apart, each as wide as the noise:

# %% alt="Two bell curves, one device apart: they overlap almost entirely, so that one sample hardly tells which it came from"
import matplotlib.pyplot as plt

heard = {u: theta * u + rng.normal(0, sigma, 100_000) for u in (-1.0, 1.0)}
for u, values in heard.items():
    plt.hist(values, bins=80, density=True, alpha=0.55, label=f"phone 0 sent {u:+.0f}")
plt.xlabel("what is heard of phone 0, noise included")
plt.legend()
plt.show()

# %% [markdown]
# The best guess is the sign of what is heard. How often is it right? All that matters is the distance over the width,
#
# > μ = 2θ/σ,
#
# and the best guess is right with probability Φ(μ/2), Φ being the normal distribution function. A coin has 50%.

# %%
from scipy.stats import norm

mu = 2 * theta / sigma
right = 0.5 * (np.mean(heard[1.0] > 0) + np.mean(heard[-1.0] < 0))
print(
    f"μ = {mu}: right in {right:.1%} of all trials; theory says {norm.cdf(mu / 2):.1%}"
)
assert abs(right - norm.cdf(mu / 2)) < 0.01
assert np.isclose(mu, decision.mu_round)

# %% [markdown]
# The noise that was a nuisance is a **privacy mechanism**, for free. Its strength is usually written as a pair (ε, δ): whatever the attacker sees, the
# odds that they hold change by a factor of at most e^ε, except with probability δ. airfed converts exactly, and rounds to the safe side:

# %%
from airfed.privacy import gaussian_epsilon

for each in (0.1, 0.5, 1.0, 2.0):
    print(
        f"μ = {each}: the best guess is right in {norm.cdf(each / 2):.1%};  ε = "
        f"{gaussian_epsilon(each, 1e-3):.3f} at δ = 0.001"
    )
assert np.isclose(decision.epsilon_round, gaussian_epsilon(mu, 1e-3))

# %% [markdown]
# ## The trade
#
# θ is the knob. Larger: the mean is more accurate, and each phone is easier to see. But there is a way out: **more phones.** The error
# falls with K, while μ = 2θ/σ does not depend on K at all.

# %% alt="Error of the mean over epsilon, for 2, 20 and 200 devices: each curve falls, and ten times as many devices are ten times more accurate at the same epsilon"
thetas = np.geomspace(0.02, 1, 60)
epsilons = [gaussian_epsilon(2 * t / sigma, 1e-3) for t in thetas]
for devices in (2, 20, 200):
    plt.loglog(epsilons, sigma / (devices * thetas), label=f"{devices} phones")
plt.xlabel("ε of one round, at δ = 0.001")
plt.ylabel("error of the mean")
plt.legend()
plt.show()

# %% [markdown]
# ## What you have seen
#
# - Aligned devices that transmit together are added up by the air: one slot, whatever their number.
# - The receiver's noise makes the mean inexact by σ/(Kθ), and hides each device: μ = 2θ/σ.
# - θ is limited by the weakest device's power, and by ε.
#
# All of it is for *one* round; [what a whole training spends](really-spent.md) is another matter.
#
# ## Exercise
#
# The mean must be exact to 0.05 (one standard deviation) and ε at most 1 at δ = 0.001, with σ = 1 and plenty of power. How many phones
# do you need? `airfed.privacy.gaussian_mu(epsilon, delta)` gives the largest μ that a budget allows.

# %% tags=["solution"]
import math

from airfed.privacy import gaussian_mu

largest = gaussian_mu(1.0, 1e-3) * sigma / 2  # θ from μ = 2θ/σ
needed = math.ceil(sigma / (0.05 * largest))
print(f"θ ≤ {largest:.4f}, so that K ≥ σ/(0.05·θ): {needed} phones")
assert gaussian_epsilon(2 * largest / sigma, 1e-3) <= 1.0
assert sigma / (needed * largest) <= 0.05 < sigma / ((needed - 1) * largest)
