"""The parts of scripts/crash_test.py."""
