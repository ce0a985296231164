# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingModuleSource=false
"""Messages of the protocol over gRPC, described here, so that nothing is generated when stoker is built.

Names and numbers of fields are those of the Open Inference Protocol's ``open_inference_grpc.proto``; only they are on
the wire. The pool is private: a client library in the same process may have the same names.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

SERVICE = "inference.GRPCInferenceService"

_SCALARS = {
    "string": 9, "bool": 8, "bytes": 12, "int32": 5, "int64": 3, "uint32": 13, "uint64": 4, "float": 2, "double": 1,
}  # fmt: skip
"""Numbers of types in descriptors."""
_MESSAGE, _OPTIONAL, _REPEATED = 11, 1, 3
_TENSOR = "name:string datatype:string shape:int64* parameters:InferParameter@ contents:InferTensorContents"
_MESSAGES = {
    "InferParameter": "bool_param:bool int64_param:int64 string_param:string double_param:double uint64_param:uint64",
    "InferTensorContents": "bool_contents:bool* int_contents:int32* int64_contents:int64* uint_contents:uint32* "
    "uint64_contents:uint64* fp32_contents:float* fp64_contents:double* bytes_contents:bytes*",
    "InferInputTensor": _TENSOR,
    "InferOutputTensor": _TENSOR,
    "InferRequestedOutputTensor": "name:string parameters:InferParameter@",
    "ModelInferRequest": "model_name:string model_version:string id:string parameters:InferParameter@ "
    "inputs:InferInputTensor* outputs:InferRequestedOutputTensor* raw_input_contents:bytes*",
    "ModelInferResponse": "model_name:string model_version:string id:string parameters:InferParameter@ "
    "outputs:InferOutputTensor* raw_output_contents:bytes*",
    "TensorMetadata": "name:string datatype:string shape:int64*",
    "ModelMetadataRequest": "name:string version:string",
    "ModelMetadataResponse": "name:string versions:string* platform:string inputs:TensorMetadata* "
    "outputs:TensorMetadata*",
    "ModelReadyRequest": "name:string version:string",
    "ModelReadyResponse": "ready:bool",
    "ServerLiveRequest": "",
    "ServerLiveResponse": "live:bool",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "ready:bool",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "name:string version:string extensions:string*",
}
"""Fields in the order of their numbers: ``*`` is repeated, ``@`` a map from strings."""
_ONE_OF = {"InferParameter": "parameter_choice"}


def _described() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="stoker/inference.proto", package="inference", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        if name in _ONE_OF:
            message.oneof_decl.add(name=_ONE_OF[name])
        for number, text in enumerate(fields.split(), 1):
            field_name, _, kind = text.partition(":")
            plain = kind.rstrip("*@")
            label = _REPEATED if kind != plain else _OPTIONAL
            field: Any = message.field.add(name=field_name, number=number, label=label)
            if kind.endswith("@"):
                _add_map(message, field, plain)
            elif plain in _SCALARS:
                field.type = _SCALARS[plain]
            else:
                field.type, field.type_name = _MESSAGE, f".inference.{plain}"
            if name in _ONE_OF:
                field.oneof_index = 0
    return file


def _add_map(message: Any, field: Any, value: str) -> None:
    entry = message.nested_type.add(name="".join(word.capitalize() for word in field.name.split("_")) + "Entry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=_OPTIONAL, type=_SCALARS["string"])
    entry.field.add(name="value", number=2, label=_OPTIONAL, type=_MESSAGE, type_name=f".inference.{value}")
    field.type, field.type_name = _MESSAGE, f".inference.{message.name}.{entry.name}"


_pool = descriptor_pool.DescriptorPool()
_pool.Add(_described())


def message_class(name: str) -> Any:
    """The class of a message."""
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"inference.{name}"))
