"""Figures: `series` computes what is shown, `figure` draws it by matplotlib, `colours` are those of every chart."""
