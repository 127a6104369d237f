"""Updates as callers give them, and the arrays that they become."""
