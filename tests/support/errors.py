import inspect
from importlib import import_module
from pkgutil import iter_modules

from shepherd_core.domain import errors

_MODULES = [errors, *(import_module(f"{errors.__name__}.{each.name}") for each in iter_modules(errors.__path__))]

ALL = [
    thing
    for module in _MODULES
    for _, thing in inspect.getmembers(module, inspect.isclass)
    if issubclass(thing, BaseException) and thing.__module__ == module.__name__
]
