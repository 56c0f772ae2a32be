"""What a run of any kind relies on: plug-in catalogs, schemas, YAML, files, locks, seeds, progress."""
