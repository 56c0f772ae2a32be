"""Routers, one a file: the file is the registration (``runtime/catalog.py``). ``rules/`` holds what several share."""
