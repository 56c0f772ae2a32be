"""Names of files in a run's folder: what was asked, the mark of a finished run, part files, sums per image."""

REQUEST, FINISHED, PARTS, IMAGES = "run.json", "table.json", "parts", "images.parquet"
# Those that no checkpoint may be called by.
TAKEN = frozenset({REQUEST, FINISHED, PARTS})
