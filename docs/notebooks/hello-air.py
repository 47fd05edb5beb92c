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
# This notebook explains over-the-air computation (AirComp) with two devices: how the channel adds their updates, why
# the receiver's noise makes the sum differentially private, and how accuracy depends on $\varepsilon$. You need
# NumPy, but no background in radio or in privacy.
#
# ![Two devices transmit at the same time; the channel adds their signals and the receiver adds noise and divides by two](images/hello-air.svg)

# %% [markdown]
# ## The task
#
# Two phones train a model together. Each has computed an *update* from its own data; here an update is one number.
# The server needs only the **mean** of the two.

# %%
import numpy as np

updates = np.array([0.8, -0.2])
print("mean of the updates:", round(updates.mean(), 6))

# %% [markdown]
# In digital transmission each phone sends its number in its own time slot, and the server computes the mean. A
# thousand phones then need a thousand slots, and the server sees every number.
#
# ## Superposition: the channel computes the sum
#
# Radio signals that arrive at the same time *add*. If both phones transmit in the same slot, the receiver gets
#
# $$y = h_0 x_0 + h_1 x_1 + r, \qquad r \sim \mathcal{N}(0, \sigma^2),$$
#
# where $x_k$ is the transmitted signal of phone $k$, $h_k$ is its **channel gain** and $r$ is the receiver's thermal
# **noise**. The gains distort the sum. Each phone therefore inverts its own channel: it transmits $x_k = (\theta /
# h_k)\, u_k$, where $u_k$ is its update. Both updates then arrive with the same **received amplitude** $\theta$. This
# is called **channel inversion** or **alignment**.

# %%
gain = np.array([0.5, 1.0])  # phone 0 is further away
theta, sigma = 0.5, 1.0  # θ: received amplitude; σ: noise standard deviation
rng = np.random.default_rng(0)

transmitted = theta / gain * updates
received = gain @ transmitted + rng.normal(0, sigma)
estimate = received / (2 * theta)
print("transmit power of each phone:", transmitted**2)
print("received:", round(received, 3), "→ estimated mean:", round(estimate, 3))

# %% [markdown]
# This takes one slot instead of two, but the noise is as large as the signal. The receiver divides the noise by
# $2\theta$ together with the signal, so the error of the mean has the standard deviation $\sigma/(2\theta)$. A
# simulation agrees:

# %%
estimates = (theta * updates.sum() + rng.normal(0, sigma, 100_000)) / (2 * theta)
print(
    "mean of all estimates:",
    round(estimates.mean(), 3),
    "  standard deviation:",
    round(estimates.std(), 3),
    "  σ/(2θ):",
    sigma / (2 * theta),
)
assert abs(estimates.mean() - updates.mean()) < 0.02
assert abs(estimates.std() / (sigma / (2 * theta)) - 1) < 0.02

# %% [markdown]
# The estimate is unbiased. With $K$ phones the standard deviation of its error is $\sigma/(K\theta)$: **each
# additional phone reduces the noise in the mean.** Training also averages the noise over many rounds.
#
# ## The same with airfed
#
# A `Problem` describes the devices, the link, the learning task and the budgets. `plan` chooses who transmits and
# with which amplitude. `AirCompRound` is the channel arithmetic that training runs use. Each update is first clipped
# to the norm $\varpi$ = `clip_norm` (here 1), so $\theta$ is the largest received amplitude of any device.

# %%
from airfed import Budget, Fleet, Learning, Link, Problem, plan
from airfed.aircomp import AirCompRound

problem = Problem(
    fleet=Fleet(gain=gain, peak_power=1.0),  # at most 1 W per device and upload
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
full_plan = plan(problem, policy="full")  # full participation
print("θ =", round(full_plan.alignment, 6), "limited by", full_plan.binding)
print("transmit power [W]:", full_plan.power)

superposition = AirCompRound.from_plan(full_plan).open_round(dimension=1)
superposition.add(np.array([0, 1]), updates[:, None])
print("estimate without noise:", superposition.receive(np.zeros(1)).estimate)
assert full_plan.binding == "peak_power"
assert np.isclose(full_plan.alignment, theta)

# %% [markdown]
# The alignment is $\theta = 0.5$ because phone 0 has the gain 0.5 and reaches at most $0.5\sqrt{1\,\mathrm{W}}$.
# Phone 1 could reach twice this amplitude, but must reduce its power to stay aligned. [The next
# notebook](weakest-device.md) is about this limit.
#
# ## Why this is private
#
# Consider an adversary who knows the received signal $y$ and also the update of phone 1. The adversary tests a single
# hypothesis: did phone 0 send $+1$ or $-1$? These are the two updates that differ most. After subtracting the known
# part, the adversary sees a sample of one of two normal distributions. Their means differ by $2\theta$, and both have
# the standard deviation $\sigma$:

# %% alt="Two normal densities one standard deviation apart: they overlap widely, so one sample hardly shows which of them it came from"
import matplotlib.pyplot as plt

observed = {u: theta * u + rng.normal(0, sigma, 100_000) for u in (-1.0, 1.0)}
for u, values in observed.items():
    plt.hist(values, bins=80, density=True, alpha=0.55, label=f"phone 0 sent {u:+.0f}")
plt.xlabel("received signal after subtracting phone 1")
plt.ylabel("density")
plt.legend()
plt.show()

# %% [markdown]
# The most powerful test takes the sign of the observation. Its success depends only on the ratio of sensitivity to
# noise,
#
# $$\mu = \frac{2\theta}{\sigma},$$
#
# the parameter of **Gaussian differential privacy**. The test is correct with probability $\Phi(\mu/2)$, where $\Phi$
# is the standard normal distribution function. Random guessing is correct with probability 50%.

# %%
from scipy.stats import norm

mu = 2 * theta / sigma
correct = 0.5 * (np.mean(observed[1.0] > 0) + np.mean(observed[-1.0] < 0))
print(
    f"μ = {mu}: correct in {correct:.1%} of all trials; theory: {norm.cdf(mu / 2):.1%}"
)
assert abs(correct - norm.cdf(mu / 2)) < 0.01
assert np.isclose(mu, full_plan.mu_round)

# %% [markdown]
# The receiver's noise is a **privacy mechanism** that costs nothing extra. Its strength is usually stated as a pair
# $(\varepsilon, \delta)$: an observation changes the adversary's odds by at most a factor of $e^\varepsilon$, except
# with probability $\delta$. airfed converts $\mu$ to $\varepsilon$ exactly and rounds up:

# %%
from airfed.privacy import gaussian_epsilon

for value in (0.1, 0.5, 1.0, 2.0):
    print(
        f"μ = {value}: the test is correct in {norm.cdf(value / 2):.1%};  "
        f"ε = {gaussian_epsilon(value, 1e-3):.3f} at δ = 0.001"
    )
assert np.isclose(full_plan.epsilon_round, gaussian_epsilon(mu, 1e-3))

# %% [markdown]
# ## Accuracy against privacy
#
# A larger $\theta$ makes the mean more accurate and each phone less private. **More phones** avoid this conflict: the
# error $\sigma/(K\theta)$ falls with $K$, while $\mu = 2\theta/\sigma$ does not depend on $K$.

# %% alt="Error of the mean over epsilon for 2, 20 and 200 devices: each curve falls, and ten times as many devices have a tenth of the error at the same epsilon"
thetas = np.geomspace(0.02, 1, 60)
epsilons = [gaussian_epsilon(2 * t / sigma, 1e-3) for t in thetas]
for devices in (2, 20, 200):
    plt.loglog(epsilons, sigma / (devices * thetas), label=f"{devices} phones")
plt.xlabel("ε per round, at δ = 0.001")
plt.ylabel("error of the mean")
plt.legend()
plt.show()

# %% [markdown]
# ## Summary
#
# - The channel adds the signals of aligned devices. One slot is enough for any number of devices.
# - The receiver's noise adds an error of $\sigma/(K\theta)$ to the mean and gives each device $\mu = 2\theta/\sigma$.
# - The power of the weakest device and the privacy budget limit $\theta$.
#
# All of this is about *one* round. [What did you really spend?](really-spent.md) covers a whole training.
#
# ## Exercise
#
# The mean must have a standard error of at most 0.05, and $\varepsilon$ must be at most 1 at $\delta = 0.001$. The
# noise is $\sigma = 1$ and power is not limited. How many phones do you need? `airfed.privacy.gaussian_mu(epsilon,
# delta)` returns the largest $\mu$ that a budget allows.

# %% tags=["solution"]
import math

from airfed.privacy import gaussian_mu

largest = gaussian_mu(1.0, 1e-3) * sigma / 2  # θ from μ = 2θ/σ
needed = math.ceil(sigma / (0.05 * largest))
print(f"θ ≤ {largest:.4f}, so K ≥ σ/(0.05·θ): {needed} phones")
assert gaussian_epsilon(2 * largest / sigma, 1e-3) <= 1.0
assert sigma / (needed * largest) <= 0.05 < sigma / ((needed - 1) * largest)
