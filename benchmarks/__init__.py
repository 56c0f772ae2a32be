"""What routers cost, and how often intervals hold the truth."""
