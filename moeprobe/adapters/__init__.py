"""Adapters: one model family per file, made traceable."""
