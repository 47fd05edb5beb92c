"""Trying to break the privacy claim: attacks on the code that transmits, and checks of what was recorded."""

from airfed.auditing.audit import Audit, audit
from airfed.auditing.subject import Subject

__all__ = ["Audit", "Subject", "audit"]
