"""Draft trees that cannot be."""

from tests.edge.table import SMALL, Bad

REST = (*SMALL, "run_dir={tmp}/run")
STATIC = ["run", "study=smoke", "decoders=[eagle1]", *REST]
DYNAMIC = ["run", "study=smoke", "decoders=[eagle2]", *REST]
CHAIN = ["run", "study=smoke", "decoders=[sd_chain]", *REST]

CASES = [
    Bad("tree: unknown name", [*STATIC, "tree.choices=naive_extend_75"], "naive_extend_57"),
    Bad("tree: unknown group", [*STATIC, "tree=statik"], "static"),
    Bad("tree: a path twice", [*STATIC, "tree.choices=[[0],[0]]"], "twice"),
    Bad("tree: a child without its parent", [*STATIC, "tree.choices=[[0],[1,0]]"], "no parent"),
    Bad("tree: a number for paths", [*STATIC, "tree.choices=25"], "a string or a list"),
    Bad("tree: null for paths", [*STATIC, "tree.choices=null"], "a string or a list"),
    Bad("tree: a word in a path", [*STATIC, "tree.choices=[[0],[a]]"], "must be an integer"),
    Bad("tree: a fraction in a path", [*STATIC, "tree.choices=[[0],[0,0.5]]"], "an integer"),
    Bad("tree: a negative rank", [*STATIC, "tree.choices=[[-1]]"], "count from 0"),
    Bad("tree: dynamic, a word for nodes", [*DYNAMIC, "tree.nodes=many"], "must be an integer"),
    Bad("tree: dynamic, a fraction of a level", [*DYNAMIC, "tree.depth=2.5"], "must be an integer"),
    Bad("tree: chain of no levels", [*CHAIN, "tree.depth=0"], "at least 1"),
]
