"""Checks of arguments, times, types and texts, which all other folders use."""
