"""Names of files in run folders that no checkpoint may have."""

REQUEST, FINISHED, PARTS = "run.json", "table.json", "parts"


# Names in a run's folder that no checkpoint's may be.
TAKEN = frozenset({REQUEST, FINISHED, PARTS})
