"""
Import every module of a built layer's own package, every handler, and all that they ever import, be it late.

Arguments: the layer's python folder, a folder with what the runtime brings, the functions' folder. Prints the magic
number of the running Python's bytecode. Runs by itself, in the Python that the layer was built for.
"""

import ast
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path


def executed(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all that is in *node*, but for what is only there for type checkers, which may name what no module has."""
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield child
            yield from executed(child)


layer, runtime, functions = map(Path, sys.argv[1:4])
sys.path[:0] = [str(layer), str(runtime)]
handlers = sorted(functions.glob("*/app.py"))
for number, handler in enumerate(handlers):
    spec = importlib.util.spec_from_file_location(f"handler_{number}", handler)
    if spec is None or spec.loader is None:
        raise ImportError(str(handler))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not callable(module.lambda_handler):
        raise TypeError(str(handler))

for source in [*(layer / "shepherd_core").rglob("*.py"), *handlers]:
    if source.is_relative_to(layer):
        own = source.relative_to(layer).with_suffix("").parts
        importlib.import_module(".".join(own[:-1] if own[-1] == "__init__" else own))
    for node in executed(ast.parse(source.read_bytes())):
        if isinstance(node, ast.Import):
            for name in node.names:
                importlib.import_module(name.name)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            package = importlib.import_module(node.module)
            for name in node.names:
                if not hasattr(package, name.name):
                    importlib.import_module(f"{node.module}.{name.name}")

sys.stdout.write(str(int.from_bytes(importlib.util.MAGIC_NUMBER[:2], "little")))
