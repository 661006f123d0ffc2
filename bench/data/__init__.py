"""What every folder of bench/ speaks of. Imports no other of them."""
