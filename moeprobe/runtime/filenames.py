"""Names of files in a run's folder: what was asked, the mark of a finished run, part files, sums per image; cells."""

REQUEST, FINISHED, PARTS, IMAGES = "run.json", "table.json", "parts", "images.parquet"
# The cells of a trade-off: the folder of those in progress, and the two files that finished ones are packed into.
CELLS, PACK, PACKED_IMAGES = "cells", "cells.json", "cells.parquet"
# Those that no checkpoint may be called by.
TAKEN = frozenset({REQUEST, FINISHED, PARTS})
