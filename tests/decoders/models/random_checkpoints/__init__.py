"""Random checkpoints in the released layouts, small in all but what a study depends on: for dry
runs of a study without its downloads (`python -m tests.stand_ins`), and for tests."""

FAMILIES = {
    "decoders.models.llamagen.load": "tests.decoders.models.random_checkpoints.llamagen",
    "decoders.models.chameleon.load_anole": "tests.decoders.models.random_checkpoints.chameleon",
    "decoders.models.chameleon.load_lumina": "tests.decoders.models.random_checkpoints.chameleon",
}  # a model's loader -> the module whose `stand_in` writes what it reads
