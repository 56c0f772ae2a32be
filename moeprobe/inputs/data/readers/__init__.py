"""Readers that several data sets share."""
