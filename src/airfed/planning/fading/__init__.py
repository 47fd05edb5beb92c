"""Plans for channels that change from round to round."""
