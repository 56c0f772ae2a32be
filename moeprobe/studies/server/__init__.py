"""A running server against the model that it serves: its routing is asked for, checked, and compared.

Requests are sent alone, again, and many at a time. What the server answers goes the way of any recorded routing: it is
imported, checked, compared with the model and with itself, and the difference of log-probabilities is split.
"""

from moeprobe.studies.server.result import ServerResult
from moeprobe.studies.server.run import check_server

__all__ = ["ServerResult", "check_server"]
