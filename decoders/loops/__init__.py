"""Loops: in which order a step does what, and the one prefill that all of them begin with."""
