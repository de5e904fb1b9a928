"""Tables, figures and the page over run folders; nothing here trains or reads data sets."""

from cpfl.reports.writing import Written, report

__all__ = ["Written", "report"]
