"""How far convt is from every peer and from the limit of the machine: ``python -m benchmarks --help``."""
