"""The analyses: one file each, which declares its metrics and computes them. Helpers are beside this folder."""
