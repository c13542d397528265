"""JSON schemas of what is sent, from its structs. msgspec's own know no unions of structs that differ by a field."""

import types
from collections.abc import Sequence
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

PREFIX = "#/components/schemas/"
PLAIN: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    Any: {},
}


def components(structs: Sequence[type[msgspec.Struct]], taken: frozenset[str]) -> dict[str, dict[str, Any]]:
    """Of these and all that they hold, by name. taken: names of other schemas."""
    return _Components(taken).of(structs)


def name(struct: type[msgspec.Struct], taken: frozenset[str]) -> str:
    """What is sent may have the name of what is asked, and is not the same."""
    return f"{struct.__name__}Reply" if struct.__name__ in taken else struct.__name__


class _Components:
    def __init__(self, taken: frozenset[str]) -> None:
        self._taken = taken
        self._owners: dict[str, type[msgspec.Struct]] = {}
        self._schemas: dict[str, dict[str, Any]] = {}

    def of(self, structs: Sequence[type[msgspec.Struct]]) -> dict[str, dict[str, Any]]:
        for struct in structs:
            self._add(struct)
        return self._schemas

    def _add(self, struct: type[msgspec.Struct]) -> str:
        known = name(struct, self._taken)
        if self._owners.setdefault(known, struct) is not struct:
            known += "Part"  # two modules use the name
        if self._owners.setdefault(known, struct) is not struct:
            raise TypeError(f"there are three structs {known}")
        if known not in self._schemas:
            self._schemas[known] = schema = {"type": "object"}
            schema.update(self._object(struct))
        return known

    def _object(self, struct: type[msgspec.Struct]) -> dict[str, Any]:
        hints = get_type_hints(struct)
        properties, required = {}, []
        for field in msgspec.structs.fields(struct):
            properties[field.encode_name] = self._schema(hints[field.name])
            if field.default is not msgspec.UNSET and not struct.__struct_config__.omit_defaults:
                required.append(field.encode_name)
        schema: dict[str, Any] = {"properties": properties, "additionalProperties": False}
        if required:
            schema["required"] = required
        own = struct.__dict__.get("__doc__")
        return {**schema, "description": own} if own else schema

    def _schema(self, kind: Any) -> dict[str, Any]:
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return {"$ref": f"{PREFIX}{self._add(kind)}"}
        origin, arguments = get_origin(kind), get_args(kind)
        if origin is Literal:
            return {"enum": list(arguments)}
        if origin in (Union, types.UnionType):
            kinds = [one for one in arguments if one is not msgspec.UnsetType]
            return self._schema(kinds[0]) if len(kinds) == 1 else {"anyOf": [self._schema(one) for one in kinds]}
        if origin is list:
            return {"type": "array", "items": self._schema(arguments[0])}
        if origin is dict:
            return {"type": "object", "additionalProperties": self._schema(arguments[1])}
        return dict(PLAIN[kind])
