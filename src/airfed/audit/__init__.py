"""Trying to break the privacy claim: attacks on the code that transmits, and checks of what was recorded."""

from airfed.audit.audit import Audit, audit
from airfed.audit.subject import Subject

__all__ = ["Audit", "Subject", "audit"]
