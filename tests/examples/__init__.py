"""Programs and commands of pages, run as they are printed."""
