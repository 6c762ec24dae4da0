"""A type as JSON Schema: the form that a waiting job leaves for those who send it a value. Pure.

Must not check a value (`forms`). Our own `x-` keywords mark where a type accepts more than JSON Schema can describe.
"""

import re
from collections.abc import Mapping
from enum import Enum
from functools import partial
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

UNCHECKED = "x-unchecked"
"""In a schema: the type accepts more than the schema can describe, for example through a validator that runs first."""

NAMES = "x-names"
"""In a schema: the field names by alias. A value may use either."""

TRIMMED = "x-trimmed"
"""In a schema: spaces around the text are ignored."""

NUMBER_TEXTS = "x-number-texts"
"""In a schema: a number may be given as text, because it is a choice or a Decimal."""

STRICT = "x-strict"
"""In a schema: text is not accepted for a number or a boolean."""


class FormSchema(GenerateJsonSchema):
    """JSON Schema, with marks where the type accepts more than JSON Schema can describe."""

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> JsonSchemaValue:
        """Mark a part that JSON Schema can't describe, and keep the rest."""
        return {UNCHECKED: True}

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> JsonSchemaValue:
        """See GenerateJsonSchema."""
        return self._marked(super().function_before_schema(schema), "json_schema_input_schema" not in schema)

    def function_after_schema(self, schema: core_schema.AfterValidatorFunctionSchema) -> JsonSchemaValue:
        """A constraint after a validator applies to what the validator returned, not to what was sent."""
        inner = schema["schema"]
        is_constraint = "pydantic_js_updates" in schema.get("metadata", {}) and inner["type"] == "function-after"
        follows = is_constraint and not isinstance(inner["function"]["function"], partial)
        return self._marked(super().function_after_schema(schema), follows)

    def function_wrap_schema(self, schema: core_schema.WrapValidatorFunctionSchema) -> JsonSchemaValue:
        """See GenerateJsonSchema."""
        return self._marked(super().function_wrap_schema(schema), "json_schema_input_schema" not in schema)

    def str_schema(self, schema: core_schema.StringSchema) -> JsonSchemaValue:
        """See GenerateJsonSchema."""
        config, pattern = self._config.config_dict, schema.get("pattern")
        made = super().str_schema(schema)
        if schema.get("strip_whitespace", config.get("str_strip_whitespace")):
            made[TRIMMED] = True
        as_text = schema.get("coerce_numbers_to_str", config.get("coerce_numbers_to_str"))
        return self._marked(made, bool(as_text) or isinstance(pattern, re.Pattern))

    def int_schema(self, schema: core_schema.IntSchema) -> JsonSchemaValue:
        """See GenerateJsonSchema."""
        return self._strict(super().int_schema(schema), schema)

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        """See GenerateJsonSchema."""
        return self._strict(super().float_schema(schema), schema)

    def bool_schema(self, schema: core_schema.BoolSchema) -> JsonSchemaValue:
        """See GenerateJsonSchema."""
        return self._strict(super().bool_schema(schema), schema)

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> JsonSchemaValue:
        """See GenerateJsonSchema."""
        return {**super().decimal_schema(schema), NUMBER_TEXTS: True}

    def timedelta_schema(self, schema: core_schema.TimedeltaSchema) -> JsonSchemaValue:
        """A text is always accepted, although numbers are, too."""
        return {"type": "string", "format": "duration"}

    def complex_schema(self, schema: core_schema.ComplexSchema) -> JsonSchemaValue:
        """See GenerateJsonSchema."""
        return self._marked(super().complex_schema(schema))

    def enum_schema(self, schema: core_schema.EnumSchema) -> JsonSchemaValue:
        """See GenerateJsonSchema."""
        made = super().enum_schema(schema)
        if schema.get("sub_type") in ("int", "float"):
            made[NUMBER_TEXTS] = True
        own = getattr(schema["cls"]._missing_, "__func__", None) is not getattr(Enum._missing_, "__func__", None)
        return self._marked(made, own)  # A class's own `_missing_` may accept other values, too.

    def call_schema(self, schema: core_schema.CallSchema) -> JsonSchemaValue:
        """A named tuple accepts an object, too."""
        return self._marked(super().call_schema(schema))

    def named_tuple_schema(self, schema: Any) -> JsonSchemaValue:
        """The same, for pydantic versions with a separate schema for named tuples."""
        return self._marked(super().named_tuple_schema(schema))

    def model_fields_schema(self, schema: core_schema.ModelFieldsSchema) -> JsonSchemaValue:
        """See GenerateJsonSchema."""
        return self._named(super().model_fields_schema(schema), schema["fields"])

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        """See GenerateJsonSchema."""
        return self._named(super().typed_dict_schema(schema), schema["fields"])

    def dataclass_args_schema(self, schema: core_schema.DataclassArgsSchema) -> JsonSchemaValue:
        """See GenerateJsonSchema."""
        return self._named(super().dataclass_args_schema(schema), {one["name"]: one for one in schema["fields"]})

    def _strict(self, made: JsonSchemaValue, schema: Mapping[str, Any]) -> JsonSchemaValue:
        return {**made, STRICT: True} if schema.get("strict", self._config.config_dict.get("strict")) else made

    def _named(self, made: JsonSchemaValue, fields: Mapping[str, Any]) -> JsonSchemaValue:
        aliases = {name: field["validation_alias"] for name, field in fields.items() if field.get("validation_alias")}
        if not all(isinstance(alias, str) for alias in aliases.values()):
            return self._marked(made)
        return {**made, NAMES: {alias: name for name, alias in aliases.items()}} if aliases else made

    def _marked(self, made: JsonSchemaValue, is_open: bool = True) -> JsonSchemaValue:
        return {**made, UNCHECKED: True} if is_open else made
