"""The report of a run: tables, plots, contact sheet, code maps and one HTML page.

``build_report(run_dir)`` in `bench.report.build` is the way in. Nothing is imported here, so that
naming the package costs no matplotlib or pandas import.
"""
