"""The record of what routers decided, pairs of records, and traces of them on disk."""
