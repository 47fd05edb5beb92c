"""airfed league: every scheme on the same budgets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from airfed import _extras
from airfed.cli.plan import OUTPUT, Json, ScenarioFile, TableFormat, read, whole_number
from airfed.cli.sweep import Address, BackendName, Jobs, job_count, print_outcome, run_points
from airfed.text import output


def league(
    file: ScenarioFile,
    /,
    *,
    out: Annotated[Path, Parameter(help="The folder of the league; what is there already is not trained again.")],
    seeds: Annotated[
        int, Parameter(help="How many, from the scenario's on; the same for every scheme.", converter=whole_number)
    ] = 5,
    policies: Annotated[str | None, Parameter(help="Who plays, as in optimal,full,top_k (default: all).")] = None,
    total: Annotated[
        float | None,
        Parameter(help="ε of the whole training (default: the scenario's; of one per round, what full spends)."),
    ] = None,
    per_round: Annotated[
        bool, Parameter(help="Keep a budget per round, though schemes then spend different totals.", negative="")
    ] = False,
    jobs: Jobs = None,
    backend: BackendName = "loky",
    address: Address = None,
    json: Json = False,
    format: TableFormat = None,
    latex: Annotated[bool, Parameter(help="The same as --format latex.", negative="", group=OUTPUT)] = False,
) -> int:
    """Train every scheme that applies to a scenario, with the same seeds within the same budgets, and rank them."""
    from airfed.experiments import benchmark
    from airfed.experiments.sweep import check_backend

    format = "latex" if latex else format
    console = output.make_console(format, stderr=json, quiet=json)
    at_a_time = job_count(jobs)
    check_backend(backend, address)
    world = read(file)
    if per_round and total is not None:
        raise ValueError("Expected --total or --per-round, not both.")
    world = world if per_round else benchmark.one_total(world, total)
    named = None if policies is None else [name.strip() for name in policies.split(",")]
    field = benchmark.Field.of(world, seeds=seeds, policies=named)
    benchmark.claim(world, out)
    if not _extras.has("matplotlib"):
        console.print("No pictures: they need matplotlib: pip install 'airfed[report]'.", markup=False)
    results, caught = run_points(console, "league", field.points, out, jobs=at_a_time, backend=backend, address=address)
    if caught:
        print_outcome(console, results)
        return 128 + caught[0]
    found = field.league(results)
    written = benchmark.write(found, results, out)
    if json:
        output.print_json(found.rows())
    else:
        found.show(console)
        console.print(f"\n{len(written)} tables and pictures in {out}", markup=False, soft_wrap=True)
    if any(entry.failed for entry in found.entries):
        return 2
    return 0 if any(entry.runs for entry in found.entries) else 3
