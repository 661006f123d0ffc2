"""The plots of a report, one file each: functions that draw what a run has as a `Chart`."""
