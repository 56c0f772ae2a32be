"""What writes the generated pages: a module per kind of page, each with ``pages()``, file below docs -> text."""
