"""Records of runs -> one self-contained HTML page."""

from airfed.report.page import write_report
from airfed.report.records import ReportError, read_run

__all__ = ["ReportError", "read_run", "write_report"]
