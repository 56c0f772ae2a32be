"""Names of the files that every run's folder may hold."""

# The request, the mark of a finished run, part files, sums per image, and the units that images were sampled in.
REQUEST, FINISHED, PARTS, IMAGES, UNITS = "run.json", "table.json", "parts", "images.parquet", "units.csv"
# The mark of a finished shard of a run, whose part files are what it has; and those of one torchrun.
SHARD, SHARDS = "shard.json", "shards"
# Those that no checkpoint may be called by.
TAKEN = frozenset({REQUEST, FINISHED, PARTS, SHARD, SHARDS})
