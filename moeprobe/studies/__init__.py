"""Several runs put together: comparisons, audits, servers, trainings, trade-offs, reports, the paper and the demo."""
