"""The report of a run: tables, plots, contact sheet, code maps and one HTML page.

``write_report(run)`` in `bench.report.build` is the way in. Nothing is imported here, so that
naming the package costs no matplotlib or pandas import.
"""
