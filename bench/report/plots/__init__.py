"""The plots of a report, one file each; every one is `draw(run) -> Plot` and draws what it has."""
