"""Several runs put together: comparisons, trainings, trade-offs, reports, the paper's tables, the demo."""
