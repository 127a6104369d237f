# Messages are built from the proto file when the module is imported; type checkers take them for Any.
from typing import Any

def __getattr__(name: str) -> Any: ...
