"""Random checkpoints in the released layouts, small in all but what a study depends on: for dry
runs of a study without its downloads (`bench checkpoints make=DIR`), and for tests."""

FAMILIES = {
    "decoders.models.llamagen.load": "decoders.models.made.llamagen",
    "decoders.models.chameleon.load_anole": "decoders.models.made.chameleon",
    "decoders.models.chameleon.load_lumina": "decoders.models.made.chameleon",
}  # a model's loader -> the module whose `stand_in` writes what it reads
