"""After the measurements: sums per image, tables, run folders, verdicts, figures."""
