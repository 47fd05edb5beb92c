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
# # Why the weakest device hurts
#
# Everybody must arrive equally strong, so one device in a radio shadow pulls all others down to its level. Leaving it out helps, but then its data are missing.
# Where is the balance? We find it by hand, as Fig. 2 of the paper does, and then let airfed check us.
#
# ![Five devices; aligned, all arrive at the height of the weakest; without it, the other four arrive twice as strongly](images/weakest-device.svg)

# %% [markdown]
# ## A fleet
#
# Twenty devices with 1 W each. Their gains |h| are drawn from a Rayleigh distribution, which is what scattered radio paths without a line of sight give.

# %%
import numpy as np

rng = np.random.default_rng(9)
devices, peak_power, sigma = 20, 1.0, 1.0
gain = np.sort(rng.rayleigh(np.sqrt(0.5), devices))[::-1]  # strongest first
print(gain.round(2))

# %% [markdown]
# A device of gain |h| that sends with its whole power P arrives with amplitude |h|√P. All must arrive alike (amplitude θ, the **alignment**), so with everybody on board
# θ is at most that of the weakest. (What if they do not align? Then the mean is a weighted one: the data of a device nearby count more than those of one
# far away, and the model learns a bias that no averaging takes away.)

# %%
print(f"strongest alone: {gain[0]:.2f}   all twenty: {gain[-1]:.2f}")
print(
    f"noise in the mean, σ/(Kθ): all twenty {sigma / (20 * gain[-1]):.2f}, the "
    f"fifteen strongest {sigma / (15 * gain[14]):.2f}"
)
assert sigma / (15 * gain[14]) < 0.27 * sigma / (20 * gain[-1])

# %% [markdown]
# Five devices fewer, and a quarter of the noise. Averages over fewer devices *should* be noisier; here the radio outweighs that.
#
# ## Three limits on θ
#
# If the m strongest transmit, then θ is limited by
#
# - the **peak power** of the weakest among them: θ ≤ |h_m|√P,
# - the **total power** of all devices over all I rounds: each spends θ²/|h|² a round, so I·θ²·Σ 1/|h|² ≤ P_tot,
# - **privacy**: μ = 2θ/σ at most what the budget (ε, δ) allows, whoever transmits.
#
# The smallest of the three counts.

# %%
from airfed.privacy import gaussian_mu

rounds, total_power, epsilon, delta = 20, 150.0, 5.0, 1e-3
sizes = np.arange(1, devices + 1)
peak = gain * np.sqrt(peak_power)
total = np.sqrt(total_power / (rounds * np.cumsum(1 / gain**2)))
privacy = np.full(devices, gaussian_mu(epsilon, delta) * sigma / 2)
theta = np.minimum(np.minimum(peak, total), privacy)
for m in (1, 5, 10, 15, 20):
    print(
        f"m = {m:2}: θ ≤ {theta[m - 1]:.3f}  (peak {peak[m - 1]:.3f}, total "
        f"{total[m - 1]:.3f}, privacy {privacy[m - 1]:.3f})"
    )

# %% [markdown]
# ## The price of leaving out
#
# Theorem 1 of the paper bounds how far the trained model stays from the best one. What depends on the choice of devices, in each round, is
#
# > Ψ = 4(1 − m/N)² + dσ²/(2m²θ²),
#
# the first term for the data that are missing, the second for the noise (d is the number of the model's parameters). One falls with m, the other rises as soon as θ breaks down.

# %% alt="Above, the largest theta over the number of devices, with its three limits; below, the objective with its two terms, smallest in the middle"
import matplotlib.pyplot as plt

dimension = 50
missing = 4 * (1 - sizes / devices) ** 2
noise = dimension * sigma**2 / (2 * sizes**2 * theta**2)
objective = missing + noise
best = int(sizes[np.argmin(objective)])

figure, (above, below) = plt.subplots(2, 1, figsize=(6.4, 5), sharex=True)
above.plot(sizes, peak, "--", label="peak power")
above.plot(sizes, total, "--", label="total power")
above.plot(sizes, privacy, "--", label="privacy")
above.plot(sizes, theta, "k", label="largest θ")
above.set(ylabel="θ", ylim=(0, 2))
above.legend(ncols=2)
below.plot(sizes, missing, label="missing data")
below.plot(sizes, noise, label="noise")
below.plot(sizes, objective, "k", label="Ψ")
below.plot(best, objective[best - 1], "k*", markersize=14)
below.set(xlabel="number of devices m", ylabel="Ψ", ylim=(0, 8), xticks=sizes[::2])
below.legend()
plt.show()
print("best:", best, "devices")

# %% [markdown]
# ## airfed agrees
#
# `plan` solves the same problem exactly, over all subsets of devices (not only the strongest: that these are best is a theorem, which airfed's tests check
# against brute force), and, unless told, over all numbers of rounds as well.

# %%
from airfed import Budget, Fleet, Learning, Link, Problem, plan
from airfed.planning import candidates

problem = Problem(
    fleet=Fleet(gain=gain, peak_power=peak_power),
    link=Link(noise_std=sigma),
    learning=Learning(
        dimension=dimension,
        total_steps=200,
        clip_norm=1.0,
        learning_rate=0.1,
        smoothness=10.0,
        strong_convexity=0.1,
        initial_gap=2.3,
    ),
    budget=Budget(epsilon=epsilon, delta=delta, total_power=total_power),
)
decision = plan(problem, rounds=rounds)
space = candidates(decision)
print(decision.num_scheduled, "devices, held by", decision.binding)
assert np.allclose(space.alignment, theta, rtol=1e-9)
assert np.allclose(space.objective, objective, rtol=1e-9)
assert decision.num_scheduled == best

# %% [markdown]
# ## A hundred devices, and the rounds as well
#
# The world of the paper: N = 100, the weakest gain 0.2, 1000 W, a network of 21,840 parameters. The number of rounds I is free now: T = 200 local steps are shared out
# among them. More rounds mean less drift between the devices, but also more power and more noise.

# %%
draws = np.random.default_rng(0).rayleigh(np.sqrt(0.5), 100)
fleet = Fleet(gain=np.maximum(draws, 0.2), peak_power=1.0)
world = Problem(
    fleet=fleet,
    link=Link(noise_std=1.0),
    learning=Learning(
        dimension=21840,
        total_steps=200,
        clip_norm=5.0,
        learning_rate=0.1,
        smoothness=10.0,
        strong_convexity=0.1,
        initial_gap=2.3,
    ),
    budget=Budget(epsilon=5.0, delta=1e-3, total_power=1000.0, formula="classic"),
)
best_plan, everybody = plan(world), plan(world, policy="full")
for name, each in (("optimal", best_plan), ("everybody", everybody)):
    print(
        f"{name:9}: {each.num_scheduled:3} devices, θ = {each.alignment:.3f} "
        f"({each.binding}), {each.rounds} rounds, bound {each.bound.total:.0f}"
    )
assert best_plan.bound.total < 0.7 * everybody.bound.total
assert everybody.binding == "peak_power"

# %% alt="The plan drawn by airfed: theta and its limits, the objective over the number of devices, and the bound over the number of rounds"
best_plan.plot()

# %% [markdown]
# This is Fig. 2 of the paper, for this draw of the channels. One caution: the optimal plan also spends *more privacy in total* than everybody does, because a larger θ
# in more rounds shows more of each device. Both keep ε ≤ 5 *per round*, and that is not the same; see [What did you really spend?](really-spent.md).
#
# ## What you have seen
#
# - Alignment ties everybody to the weakest device; dropping weak devices lowers the noise and loses data.
# - For each number of devices the strongest are best, so one pass over a sorted list solves the problem exactly.
# - Which limit binds (peak power, total power, privacy) tells what to buy more of.
#
# ## Exercise
#
# Raise the weakest gains: `Fleet(gain=np.maximum(draws, h_min), ...)`. From which h_min on (in steps of 0.1) does the optimal plan schedule all hundred devices?
# Guess first; then look at which limit binds.

# %% tags=["solution"]
from dataclasses import replace

for h_min in np.arange(1, 12) / 10:
    raised = replace(world, fleet=Fleet(gain=np.maximum(draws, h_min), peak_power=1.0))
    found = plan(raised)
    print(
        f"h_min = {h_min}: {found.num_scheduled:3} devices, {found.rounds} rounds, "
        f"{found.binding}"
    )
    if found.num_scheduled == 100:
        break
assert found.num_scheduled == 100
assert 0.3 <= h_min <= 0.8
