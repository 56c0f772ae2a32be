"""Routing on disk: the trace format, and what servers and trainers send, read without torch, JAX or pickle.

An import goes from ``import_experts`` through a reader (``readers/``) and ``validate_capture`` to ``rows`` and
``format``; ``reading`` gives a trace back, and ``pairs`` says which inputs two of them share.
"""
