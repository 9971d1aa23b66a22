"""Pickles values by value that pickle knows only by name: functions, classes and what belongs to them."""

import marshal
import pickle
import sys
import types
from collections import namedtuple
from functools import _lru_cache_wrapper, cached_property, lru_cache
from importlib import import_module
from types import (
    CellType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    ModuleType,
    new_class,
)
from typing import TypeVar

OWN = __name__
MAIN = "__main__"
HEAP_TYPE = 1 << 9
# Attributes of a class that Python makes again.
MADE_BY_CLASS = {"__dict__", "__weakref__", "__module__", "__qualname__", "__slots__", "__orig_bases__", "_abc_impl"}
MADE_BY_NAMEDTUPLE = {
    "__new__", "__repr__", "__getnewargs__", "__match_args__", "__replace__", "__slots__", "__doc__",
    "_fields", "_field_defaults", "_fields_defaults", "_make", "_replace", "_asdict",
}
MADE_BY_ENUM = {
    "__new__", "_generate_next_value_", "_member_names_", "_member_map_", "_member_type_", "_value2member_map_",
    "_new_member_", "_use_args_", "_unhashable_values_", "_unhashable_values_map_", "_hashable_values_",
    "_value_repr_", "_boundary_", "_flag_mask_", "_all_bits_", "_inverted_", "_singles_mask_", "_order_",
}
# Instances that are identified by their name.
SENTINELS = ("MISSING", "KW_ONLY", "_HAS_DEFAULT_FACTORY", "_FIELD", "_FIELD_CLASSVAR", "_FIELD_INITVAR")


class Pickler(pickle.Pickler):
    def __init__(self, file, protocol, main):
        super().__init__(file, protocol)
        self.main = main
        dataclasses = sys.modules.get("dataclasses")
        self.sentinels = {
            id(value): name for name in SENTINELS if (value := getattr(dataclasses, name, None)) is not None
        }

    def reducer_override(self, value):
        if isinstance(value, type):
            if has_name(value):
                return NotImplemented
            if not value.__flags__ & HEAP_TYPE:
                return attribute_of, ("types", name_of_type(value))
            return self.of_class(value)
        kind = type(value)
        reducer = REDUCERS.get(kind)
        if reducer is not None:
            return reducer(self, value)
        if id(value) in self.sentinels:
            return attribute_of, ("dataclasses", self.sentinels[id(value)])
        return NotImplemented

    def of_function(self, value):
        if has_name(value):
            return NotImplemented
        home = self.home_of(value)
        state = {
            "defaults": value.__defaults__,
            "kwdefaults": value.__kwdefaults__,
            "annotations": value.__annotations__,
            "names": (value.__name__, value.__qualname__, value.__module__, value.__doc__),
            "attributes": value.__dict__,
        }
        arguments = value.__code__, home, value.__closure__
        return make_function, arguments, state, None, None, fill_function

    def home_of(self, value):
        """Returns the module whose globals a function uses. `None` is `__main__`."""
        space = value.__globals__
        if space is self.main.__dict__:
            return None
        name = space.get("__name__")
        if name != MAIN and getattr(sys.modules.get(name), "__dict__", None) is space:
            return name
        raise pickle.PicklingError("function %s has globals of its own" % value.__qualname__)

    def of_module(self, value):
        if value is self.main or value.__name__ == MAIN:
            return main_module, ()
        if sys.modules.get(value.__name__) is not value:
            raise pickle.PicklingError("module %s cannot be imported by its name" % value.__name__)
        return import_module, (value.__name__,)

    def of_cell(self, value):
        try:
            content = (value.cell_contents,)
        except ValueError:
            content = ()
        return make_cell, (), content, None, None, fill_cell

    def of_code(self, value):
        return make_code, (marshal.dumps(value),)

    def of_proxy(self, value):
        return make_proxy, (dict(value),)

    def of_property(self, value):
        return property, (value.fget, value.fset, value.fdel, value.__doc__)

    def of_method(self, value):
        return type(value), (value.__func__,)

    def of_cached_property(self, value):
        return make_cached_property, (value.func, value.attrname)

    def of_cached(self, value):
        if has_name(value):
            return NotImplemented
        parameters = value.cache_parameters()
        return make_cached, (value.__wrapped__, parameters["maxsize"], parameters["typed"])

    def of_type_variable(self, value):
        if value.__module__ != MAIN:
            return NotImplemented
        kinds = value.__covariant__, value.__contravariant__
        return make_type_variable, (value.__name__, value.__constraints__, value.__bound__, *kinds)

    def of_class(self, value):
        space = value.__dict__
        about = {"__module__": value.__module__, "__qualname__": value.__qualname__}
        enum = sys.modules.get("enum")
        if enum is not None and issubclass(value, enum.Enum) and len(value):
            members = {name: member._value_ for name, member in value.__members__.items()}
            arguments = type(value), value.__name__, value.__bases__, members, about
            left = {name for name in space if name in members or name in MADE_BY_ENUM}
            return make_enum, arguments, own(space, left), None, None, fill_class
        if value.__bases__ == (tuple,) and hasattr(value, "_fields"):
            defaults = tuple(value._field_defaults.values())
            arguments = value.__name__, value._fields, defaults, about
            return make_namedtuple, arguments, own(space, {*MADE_BY_NAMEDTUPLE, *value._fields}), None, None, fill_class
        for name in ("__slots__", "__orig_bases__"):
            if name in space:
                about[name] = space[name]
        arguments = type(value), value.__name__, value.__bases__, about
        return make_class, arguments, own(space, ()), None, None, fill_class


REDUCERS = {
    FunctionType: Pickler.of_function,
    ModuleType: Pickler.of_module,
    CellType: Pickler.of_cell,
    CodeType: Pickler.of_code,
    MappingProxyType: Pickler.of_proxy,
    property: Pickler.of_property,
    classmethod: Pickler.of_method,
    staticmethod: Pickler.of_method,
    cached_property: Pickler.of_cached_property,
    _lru_cache_wrapper: Pickler.of_cached,
    TypeVar: Pickler.of_type_variable,
}


def own(space, left):
    """Returns the attributes that a class defines itself."""
    slots = (GetSetDescriptorType, MemberDescriptorType)
    return {
        name: value
        for name, value in space.items()
        if name not in MADE_BY_CLASS and name not in left and not isinstance(value, slots)
    }


def name_of_type(value):
    for name, known in vars(types).items():
        if known is value:
            return name
    raise pickle.PicklingError("type %s has no name" % value.__qualname__)


def has_name(value):
    """Returns true when another interpreter finds it by its name."""
    module = getattr(value, "__module__", None)
    if module == MAIN or module not in sys.modules:
        return module is None and getattr(sys.modules["builtins"], value.__name__, None) is value
    found = sys.modules[module]
    for part in value.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is value


class Unpickler(pickle.Unpickler):
    def __init__(self, file, main):
        super().__init__(file)
        self.main = main

    def find_class(self, module, name):
        if module == OWN:
            return globals()[name]
        if module == MAIN and not hasattr(self.main, name):
            raise AttributeError("%s was stored by its name, and is not there" % name)
        return super().find_class(module, name)


# Functions that are called when they are read.


def main_module():
    return sys.modules[MAIN]


def attribute_of(module, name):
    return getattr(import_module(module), name)


def make_code(data):
    return marshal.loads(data)


def make_proxy(content):
    return MappingProxyType(content)


def make_cell():
    return CellType()


def make_cached_property(function, name):
    made = cached_property(function)
    if name is not None:
        made.__set_name__(None, name)
    return made


def make_function(code, home, closure):
    space = main_module() if home is None else import_module(home)
    return FunctionType(code, space.__dict__, code.co_name, None, closure)


def fill_function(function, state):
    function.__defaults__, function.__kwdefaults__ = state["defaults"], state["kwdefaults"]
    function.__annotations__ = state["annotations"]
    function.__name__, function.__qualname__, function.__module__, function.__doc__ = state["names"]
    function.__dict__.update(state["attributes"])


def fill_cell(cell, content):
    for value in content:
        cell.cell_contents = value


def make_cached(function, maxsize, typed):
    return lru_cache(maxsize, typed)(function)


def make_type_variable(name, constraints, bound, covariant, contravariant):
    made = TypeVar(name, *constraints, bound=bound, covariant=covariant, contravariant=contravariant)
    made.__module__ = MAIN
    return made


def make_class(meta, name, bases, about):
    return new_class(name, bases, {"metaclass": meta}, lambda space: space.update(about))


def make_namedtuple(name, fields, defaults, about):
    made = namedtuple(name, fields, defaults=defaults)
    for key, value in about.items():
        setattr(made, key, value)
    return made


def make_enum(meta, name, bases, members, about):
    space = meta.__prepare__(name, bases)
    for key, value in (*about.items(), *members.items()):
        space[key] = value
    return meta.__new__(meta, name, bases, space)


def fill_class(made, space):
    for name, value in space.items():
        type.__setattr__(made, name, value)
