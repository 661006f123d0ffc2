"""The plots of a report, one file each; every one is a `draw` of a `Chart` and draws what it has."""
