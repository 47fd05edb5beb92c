"""Figures: `series` computes the numbers, `figure` draws them with matplotlib, `colours` names all colours."""
