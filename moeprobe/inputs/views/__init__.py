"""Views: one family of perturbations per file, each returning pixels and the map to the source."""
