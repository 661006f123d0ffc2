"""The report of a run: texts, figures, one HTML page, and a page a prompt.

``write_report(run)`` in `bench.report.build` is the way in. Nothing is imported here, so that
naming the package costs no matplotlib or pandas import.
"""
