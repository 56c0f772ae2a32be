"""The record of what routers decided, pairs of records, and what a model must be able to do to be probed."""
