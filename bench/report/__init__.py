"""The report of a run: texts, figures, one HTML page, and a page per prompt.

``write_report(run)`` in `bench.report.page` is the way in. Nothing is imported here, so that
naming the package costs no matplotlib or pandas import.
"""
