from shepherd_core.domain.pb import agent_pb2 as _agent_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HeartbeatRequest(_message.Message):
    __slots__ = ("machine_id", "hardware_report", "installation_report", "failed_attempts", "report_interval_seconds")
    MACHINE_ID_FIELD_NUMBER: _ClassVar[int]
    HARDWARE_REPORT_FIELD_NUMBER: _ClassVar[int]
    INSTALLATION_REPORT_FIELD_NUMBER: _ClassVar[int]
    FAILED_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    REPORT_INTERVAL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    machine_id: str
    hardware_report: AgentHardwareReport
    installation_report: OSInstallationReport
    failed_attempts: int
    report_interval_seconds: int
    def __init__(self, machine_id: _Optional[str] = ..., hardware_report: _Optional[_Union[AgentHardwareReport, _Mapping]] = ..., installation_report: _Optional[_Union[OSInstallationReport, _Mapping]] = ..., failed_attempts: _Optional[int] = ..., report_interval_seconds: _Optional[int] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("installation_request", "report_interval_seconds")
    INSTALLATION_REQUEST_FIELD_NUMBER: _ClassVar[int]
    REPORT_INTERVAL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    installation_request: OSInstallationRequest
    report_interval_seconds: int
    def __init__(self, installation_request: _Optional[_Union[OSInstallationRequest, _Mapping]] = ..., report_interval_seconds: _Optional[int] = ...) -> None: ...

class AgentHardwareReport(_message.Message):
    __slots__ = ("report", "warning")
    REPORT_FIELD_NUMBER: _ClassVar[int]
    WARNING_FIELD_NUMBER: _ClassVar[int]
    report: _agent_pb2.Node
    warning: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, report: _Optional[_Union[_agent_pb2.Node, _Mapping]] = ..., warning: _Optional[_Iterable[str]] = ...) -> None: ...

class OSInstallationReport(_message.Message):
    __slots__ = ("generation", "success", "error")
    class Success(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    class Error(_message.Message):
        __slots__ = ("error",)
        ERROR_FIELD_NUMBER: _ClassVar[int]
        error: str
        def __init__(self, error: _Optional[str] = ...) -> None: ...
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    generation: int
    success: OSInstallationReport.Success
    error: OSInstallationReport.Error
    def __init__(self, generation: _Optional[int] = ..., success: _Optional[_Union[OSInstallationReport.Success, _Mapping]] = ..., error: _Optional[_Union[OSInstallationReport.Error, _Mapping]] = ...) -> None: ...

class OSInstallationRequest(_message.Message):
    __slots__ = ("generation", "metropolis", "signed", "signature")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    METROPOLIS_FIELD_NUMBER: _ClassVar[int]
    SIGNED_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    generation: int
    metropolis: MetropolisInstallation
    signed: bytes
    signature: bytes
    def __init__(self, generation: _Optional[int] = ..., metropolis: _Optional[_Union[MetropolisInstallation, _Mapping]] = ..., signed: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class SignedInstallation(_message.Message):
    __slots__ = ("machine_id", "expires_at", "request")
    MACHINE_ID_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    machine_id: str
    expires_at: int
    request: bytes
    def __init__(self, machine_id: _Optional[str] = ..., expires_at: _Optional[int] = ..., request: _Optional[bytes] = ...) -> None: ...

class MetropolisInstallation(_message.Message):
    __slots__ = ("node_parameters", "root_device", "os_image", "image_url", "image_sha256")
    NODE_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    ROOT_DEVICE_FIELD_NUMBER: _ClassVar[int]
    OS_IMAGE_FIELD_NUMBER: _ClassVar[int]
    IMAGE_URL_FIELD_NUMBER: _ClassVar[int]
    IMAGE_SHA256_FIELD_NUMBER: _ClassVar[int]
    node_parameters: bytes
    root_device: str
    os_image: OSImageRef
    image_url: str
    image_sha256: bytes
    def __init__(self, node_parameters: _Optional[bytes] = ..., root_device: _Optional[str] = ..., os_image: _Optional[_Union[OSImageRef, _Mapping]] = ..., image_url: _Optional[str] = ..., image_sha256: _Optional[bytes] = ...) -> None: ...

class OSImageRef(_message.Message):
    __slots__ = ("scheme", "host", "repository", "tag", "digest")
    SCHEME_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    REPOSITORY_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    scheme: str
    host: str
    repository: str
    tag: str
    digest: str
    def __init__(self, scheme: _Optional[str] = ..., host: _Optional[str] = ..., repository: _Optional[str] = ..., tag: _Optional[str] = ..., digest: _Optional[str] = ...) -> None: ...
