"""Names of files in a run's folder: request, finish mark, part files, sums per image; cells."""

REQUEST, FINISHED, PARTS, IMAGES = "run.json", "table.json", "parts", "images.parquet"
# The mark of a finished shard of a run, whose part files are what it has; and those of one torchrun.
SHARD, SHARDS = "shard.json", "shards"
# The cells of a trade-off: the folder of those in progress, and the two files that finished ones are packed into.
CELLS, PACK, PACKED_IMAGES = "cells", "cells.json", "cells.parquet"
# Those that no checkpoint may be called by.
TAKEN = frozenset({REQUEST, FINISHED, PARTS, SHARD, SHARDS})
