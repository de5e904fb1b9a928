"""Tables, pictures and the page over run folders; nothing here trains, and nothing reads the data."""

from cpfl.report.writing import Written, report

__all__ = ["Written", "report"]
