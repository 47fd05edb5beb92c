"""The audit: attacks on the code that transmits, and checks of the record, against the claimed privacy."""

from airfed.audit.audit import Audit, audit
from airfed.audit.subject import Subject

__all__ = ["Audit", "Subject", "audit"]
