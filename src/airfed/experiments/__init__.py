"""Sweeps, benchmarks, pilot runs, calibration and the paper's figures."""
