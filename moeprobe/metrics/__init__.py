"""Metrics: their declarations, the analyses that compute them (`analyses/`), and statistics (`stats/`)."""
