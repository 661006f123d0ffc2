"""Floors: bytes and operations of a forward (work.py), and a machine's measured rates (rates.py;
machine.py and moments.py measure them)."""
