"""What a question declares once: commands, functions of the API, reports, audits and docs are made of it.

Nothing here, and nothing in a declaration, imports torch, pandas or matplotlib. Plug-ins import from here.
"""

from moeprobe.declarations.fields import Arg
from moeprobe.declarations.headlines import CLEAN, Agreement, AuditEntry, Headline, Property, Rule
from moeprobe.declarations.kinds import AGREEMENT, Kind, Layout, Panel
from moeprobe.declarations.probe import Probe, Views

__all__ = [
    "AGREEMENT",
    "CLEAN",
    "Agreement",
    "Arg",
    "AuditEntry",
    "Headline",
    "Kind",
    "Layout",
    "Panel",
    "Probe",
    "Property",
    "Rule",
    "Views",
]
