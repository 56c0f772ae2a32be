"""The audit: can the routing of a model be trusted, and is model B better than model A?

It runs the probes that join it by their declarations (``Kind.audit``), judges their numbers by the reference values in
``scales``, and ends in a verdict per property and one page.
"""

from moeprobe.studies.audit.plan import AuditPlan, AuditStep
from moeprobe.studies.audit.result import AuditResult, read_audit
from moeprobe.studies.audit.run import audit, audit_runs, plan_audit

__all__ = ["AuditPlan", "AuditResult", "AuditStep", "audit", "audit_runs", "plan_audit", "read_audit"]
