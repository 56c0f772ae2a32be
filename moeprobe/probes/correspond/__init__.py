"""Corresponding patches of two views, and the experts that they get."""
