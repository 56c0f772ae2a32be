"""Routers: one rule of choosing experts per file."""
