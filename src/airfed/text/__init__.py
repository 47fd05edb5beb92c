"""Plans, runs and results as text: sentences, tables, exports and the console."""
