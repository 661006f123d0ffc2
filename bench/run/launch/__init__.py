"""A run over many workers: shards on this machine, on SLURM or on Ray; merged, fetched, packed."""
