"""A pretrained transformer made sparse, trained and measured on real photographs: ``make real``."""
