"""The parts of crash_cycles.py."""
