"""Analyses: one measurement per file, from traces to sums per image and from sums to statistics."""
