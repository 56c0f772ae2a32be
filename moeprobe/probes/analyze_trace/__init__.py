"""Measure recorded routing."""
