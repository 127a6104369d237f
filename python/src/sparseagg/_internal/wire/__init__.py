"""How keys and values go over the wire."""
