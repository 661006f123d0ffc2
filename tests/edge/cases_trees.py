"""Draft trees that cannot be."""

from tests.edge.table import SMALL, Bad

REST = (*SMALL, "run_dir={tmp}/run")
STATIC = ["run", "study=smoke", "decoders=[eagle1]", *REST]

CASES = [
    Bad("tree: unknown name", [*STATIC, "tree.choices=naive_extend_75"], "naive_extend_57"),
    Bad("tree: a path twice", [*STATIC, "tree.choices=[[0],[0]]"], "twice"),
    Bad("tree: a child without its parent", [*STATIC, "tree.choices=[[0],[1,0]]"], "no parent"),
    Bad("tree: a number for paths", [*STATIC, "tree.choices=25"], "a string or a list"),
    Bad("tree: a word in a path", [*STATIC, "tree.choices=[[0],[a]]"], "must be an integer"),
    Bad("tree: a negative rank", [*STATIC, "tree.choices=[[-1]]"], "count from 0"),
]
