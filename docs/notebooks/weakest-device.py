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
# Aligned devices all arrive with the same amplitude, so one device in a deep fade limits the amplitude of all others.
# A schedule without this device has less noise, but misses its data. This notebook finds the best schedule by hand,
# as in Fig. 2 of the paper, and then compares it with airfed's plan.
#
# ![Five devices: aligned, all arrive with the amplitude of the weakest; without it the other four arrive 2.5 times as strongly](images/weakest-device.svg)

# %% [markdown]
# ## A fleet
#
# Twenty devices have a peak power of 1 W per upload each. Their gains $|h_k|$ follow a Rayleigh distribution, the
# usual model for scattered paths without a line of sight.

# %%
import numpy as np

rng = np.random.default_rng(9)
devices, peak_power, sigma = 20, 1.0, 1.0
gain = np.sort(rng.rayleigh(np.sqrt(0.5), devices))[::-1]  # strongest first
print(gain.round(2))

# %% [markdown]
# A device with the gain $|h_k|$ and the transmit power $P$ arrives with the received amplitude $|h_k|\sqrt{P}$. Under
# channel inversion all scheduled devices arrive with the same amplitude $\theta$, the **alignment**. With full
# participation $\theta$ is at most the largest amplitude of the weakest device. (Without alignment the receiver gets
# a weighted mean: near devices count more than distant ones, which biases the model.)

# %%
print(f"largest θ: {gain[0]:.2f} (strongest alone), {gain[-1]:.2f} (all twenty)")
print(
    f"noise in the mean, σ/(Kθ): {sigma / (20 * gain[-1]):.2f} (all twenty), "
    f"{sigma / (15 * gain[14]):.2f} (the fifteen strongest)"
)
assert sigma / (15 * gain[14]) < 0.27 * sigma / (20 * gain[-1])

# %% [markdown]
# Fifteen devices have a quarter of the noise of twenty. An average over fewer devices is usually noisier, but here
# the larger $\theta$ outweighs the smaller number.
#
# ## Three limits on θ
#
# Suppose the $m$ strongest devices transmit in each of $I$ rounds. Three limits apply to $\theta$:
#
# - **peak power** of the weakest scheduled device: $\theta \le |h_m|\sqrt{P}$;
# - **total power** over all devices and rounds: a device spends $\theta^2/|h_k|^2$ per round, so $I\,\theta^2 \sum_{k
#   \le m} 1/|h_k|^2 \le P_\mathrm{tot}$;
# - **privacy**: $\mu = 2\theta/\sigma$ is at most the largest $\mu$ that $(\varepsilon, \delta)$ allows, whichever
#   devices transmit.
#
# The smallest limit determines $\theta$.

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
# ## Participation against noise
#
# Theorem 1 of the paper bounds the distance of the trained model from the optimum. The schedule enters the bound of
# each round through
#
# $$\Psi = 4\left(1 - \frac{m}{N}\right)^2 + \frac{d\,\sigma^2}{2 m^2 \theta^2},$$
#
# where $d$ is the number of model parameters. The first term is the cost of partial participation and falls with $m$.
# The second term is the cost of noise and rises where $\theta$ drops.

# %% alt="Top: the largest theta over the number of devices, with its three limits. Bottom: the objective and its two terms; the minimum is marked with a star"
import matplotlib.pyplot as plt

dimension = 50
participation = 4 * (1 - sizes / devices) ** 2
noise = dimension * sigma**2 / (2 * sizes**2 * theta**2)
objective = participation + noise
best = int(sizes[np.argmin(objective)])

figure, (top, bottom) = plt.subplots(2, 1, figsize=(6.4, 5), sharex=True)
top.plot(sizes, peak, "--", label="peak power")
top.plot(sizes, total, "--", label="total power")
top.plot(sizes, privacy, "--", label="privacy")
top.plot(sizes, theta, "k", label="largest θ")
top.set(ylabel="θ", ylim=(0, 2))
top.legend(ncols=2)
bottom.plot(sizes, participation, label="participation")
bottom.plot(sizes, noise, label="noise")
bottom.plot(sizes, objective, "k", label="Ψ")
bottom.plot(best, objective[best - 1], "k*", markersize=14)
bottom.set(xlabel="number of devices m", ylabel="Ψ", ylim=(0, 8), xticks=sizes[::2])
bottom.legend()
plt.show()
print("best number of devices:", best)

# %% [markdown]
# ## airfed's plan
#
# `plan` solves the same problem exactly over all subsets of devices. For each number of devices the strongest ones
# are optimal; this is a theorem, and airfed's tests check it against brute force. By default `plan` also optimises
# the number of rounds; here it is fixed.

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
optimal = plan(problem, rounds=rounds)
space = candidates(optimal)
print(optimal.num_scheduled, "devices, θ limited by", optimal.binding)
assert np.allclose(space.alignment, theta, rtol=1e-9)
assert np.allclose(space.objective, objective, rtol=1e-9)
assert optimal.num_scheduled == best

# %% [markdown]
# ## A hundred devices and a free number of rounds
#
# This is the paper's setting: $N = 100$ devices, a smallest gain of 0.2, $P_\mathrm{tot} = 1000$ W and a network with
# $d = 21{,}840$ parameters. The $T = 200$ local steps are divided among $I$ rounds, and `plan` chooses $I$. More
# rounds reduce the drift between devices, but need more power and add more noise.

# %%
rayleigh = np.random.default_rng(0).rayleigh(np.sqrt(0.5), 100)
paper = Problem(
    fleet=Fleet(gain=np.maximum(rayleigh, 0.2), peak_power=1.0),
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
optimal, full = plan(paper), plan(paper, policy="full")
for name, each in (("optimal", optimal), ("full", full)):
    print(
        f"{name:7}: {each.num_scheduled:3} devices, θ = {each.alignment:.3f} "
        f"({each.binding}), {each.rounds} rounds, bound {each.bound.total:.0f}, "
        f"ε in total {each.epsilon_total:.1f}"
    )
assert optimal.bound.total < 0.7 * full.bound.total
assert full.binding == "peak_power"
assert optimal.epsilon_total > full.epsilon_total

# %% alt="The plan as airfed draws it: theta and its limits, the objective over the number of devices, and the bound over the number of rounds"
optimal.plot()

# %% [markdown]
# This figure is Fig. 2 of the paper for one channel realisation. The optimal plan has the smaller bound, but it also
# spends *more privacy in total* than full participation, because its $\theta$ is larger and it has more rounds. Both
# plans keep $\varepsilon \le 5$ *per round* only; see [What did you really spend?](really-spent.md).
#
# ## Summary
#
# - Alignment limits all devices to the amplitude of the weakest. Fewer devices mean less noise and less data.
# - For each number of devices the strongest are optimal, so one pass over the sorted gains solves the problem
#   exactly.
# - `plan.binding` names the limit that determines $\theta$: peak power, total power or privacy.
#
# ## Exercise
#
# Raise the weakest gains with `Fleet(gain=np.maximum(rayleigh, h_min), ...)`. What is the smallest `h_min`, in steps
# of 0.1, for which the optimal plan schedules all hundred devices? Which limit binds there?

# %% tags=["solution"]
from dataclasses import replace

for h_min in np.arange(1, 12) / 10:
    raised = Fleet(gain=np.maximum(rayleigh, h_min), peak_power=1.0)
    optimal = plan(replace(paper, fleet=raised))
    print(
        f"h_min = {h_min}: {optimal.num_scheduled:3} devices, {optimal.rounds} rounds, "
        f"limited by {optimal.binding}"
    )
    if optimal.num_scheduled == 100:
        break
assert optimal.num_scheduled == 100
assert 0.3 <= h_min <= 0.8
