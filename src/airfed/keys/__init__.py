"""Keys of scenarios, declared once: meaning, symbol, unit, range, default, and how a page turns them.

The checks, the sentences about a wrong value, the reference (`docs/scenario.md`), the commented template and the knobs
of the explorer all come from the declaration.
"""
