"""What a person sees: words, colours, and charts described once.

`words` and `colours` serve terminal, pages and files alike. A picture is a `chart.Chart`, a value that says what is to
be seen; `plans` makes them from decisions, `runs` and `training` from records. Two back ends draw it: `svg` for pages,
`figure` (matplotlib) for files.
"""
