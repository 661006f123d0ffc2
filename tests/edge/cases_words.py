"""Words of the command line that mean nothing."""

from tests.edge.table import Bad

CASES = [
    Bad("unknown command", ["rnu"], "run"),
    Bad("unknown study", ["run", "study=smok", "run_dir={tmp}/run"], "smoke"),
    Bad("seed is a word", ["run", "study=smoke", "seed=abc", "run_dir={tmp}/run"], "integer"),
]
