"""The commented scenario that `airfed new` writes."""

from typing import Final

SCENARIO: Final = """\
# An airfed scenario. Numbers are in SI units; powers may also be texts such as "30 dBm" or "500 mW".
# airfed plan FILE      decides: which devices transmit, how strongly, in how many rounds
# airfed compare FILE   shows the policies side by side
# airfed run FILE --out DIR   trains: over the air, metered and recorded

name = "my-scenario"
seed = 0                         # one seed for channels, data, initial model, policy and noise

[fleet]
num_devices = 100                # N
peak_power = 1.0                 # P_k [W]; a list gives one per device

[channel]
model = "rayleigh"               # fixed (gains = [...]), rayleigh, rician (k_factor), uniform (low, high),
                                 # cell (radius, path_loss_exponent, shadowing_db), file (path to .csv or .npy)
scale = 1.0                      # root mean square of |h|
minimum = 0.2                    # h_min: weaker gains are raised to it
pin_minimum = true               # set the weakest device exactly to it, as the paper's figures do
# estimation_error = 0.01        # NMSE of the gains as the devices know them; privacy then counts on it

[link]
noise_std = 1.0                  # σ per real dimension [√W]; complex noise of s² W has σ = s/√2

[budget]
epsilon = 5.0                    # ε
delta = 1e-3                     # ξ in the paper
scope = "round"                  # what (epsilon, delta) covers: each "round", or the "total" training
formula = "exact"                # "exact", or "classic" (Lemma 1, as in the paper)
relation = "replace"             # neighbours: "replace" one device's data, or "add_remove" one device
total_power = 1000.0             # P_tot [W], summed over devices and rounds
# account = "privacy.jsonl"      # with scope = "total": one ledger that all trainings on the same data charge

[learning]
dataset = "mnist-5k"             # mnist-5k (comes along), mnist, fashion-mnist, a folder of IDX files, an .npz file
partition = "iid"                # iid, dirichlet (alpha), shards (shards_per_device)
model = "cnn"                    # cnn, mlp, logistic, or your own "module:callable" that returns a torch module
                                 # (the module may lie beside this file)
total_steps = 200                # T, local steps per device over the whole training
learning_rate = 0.1              # τ; the bound is proved for τ = 1/ζ
clip_norm = 5.0                  # ϖ, the norm that every upload is clipped to
smoothness = 10.0                # ζ   ┐
strong_convexity = 0.1           # ϱ   ├ constants of the bound
initial_gap = 2.3                # G   ┘

[policy]
name = "optimal"                 # optimal, paper, full, uniform (size), top_k (size), threshold (threshold)
# rounds = 40                    # I; every I in 1..T is considered unless it is written down

# [run]
# device = "auto"                # auto, cpu, cuda, cuda:1, mps: where the torch engine computes
# threads = 2                    # one per processor unless it is written down
"""
