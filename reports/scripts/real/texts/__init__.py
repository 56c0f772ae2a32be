"""A trained text encoder made sparse, trained and measured on real texts: the second half of ``make real``."""
