from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EFISupport(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EFI_INVALID: _ClassVar[EFISupport]
    EFI_UNKNOWN: _ClassVar[EFISupport]
    EFI_UNSUPPORTED: _ClassVar[EFISupport]
    EFI_SUPPORTED: _ClassVar[EFISupport]
    EFI_ENABLED: _ClassVar[EFISupport]
EFI_INVALID: EFISupport
EFI_UNKNOWN: EFISupport
EFI_UNSUPPORTED: EFISupport
EFI_SUPPORTED: EFISupport
EFI_ENABLED: EFISupport

class TakeoverInit(_message.Message):
    __slots__ = ("machine_id", "bmaas_endpoint", "ca_certificate", "installation_key", "time")
    MACHINE_ID_FIELD_NUMBER: _ClassVar[int]
    BMAAS_ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    CA_CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    INSTALLATION_KEY_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    machine_id: str
    bmaas_endpoint: str
    ca_certificate: bytes
    installation_key: _containers.RepeatedScalarFieldContainer[bytes]
    time: int
    def __init__(self, machine_id: _Optional[str] = ..., bmaas_endpoint: _Optional[str] = ..., ca_certificate: _Optional[bytes] = ..., installation_key: _Optional[_Iterable[bytes]] = ..., time: _Optional[int] = ...) -> None: ...

class TakeoverSuccess(_message.Message):
    __slots__ = ("init_message", "key", "warning")
    INIT_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    WARNING_FIELD_NUMBER: _ClassVar[int]
    init_message: TakeoverInit
    key: bytes
    warning: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, init_message: _Optional[_Union[TakeoverInit, _Mapping]] = ..., key: _Optional[bytes] = ..., warning: _Optional[_Iterable[str]] = ...) -> None: ...

class TakeoverError(_message.Message):
    __slots__ = ("message",)
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    message: str
    def __init__(self, message: _Optional[str] = ...) -> None: ...

class TakeoverResponse(_message.Message):
    __slots__ = ("success", "error")
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    success: TakeoverSuccess
    error: TakeoverError
    def __init__(self, success: _Optional[_Union[TakeoverSuccess, _Mapping]] = ..., error: _Optional[_Union[TakeoverError, _Mapping]] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ("manufacturer", "product", "serial_number", "memory_installed_bytes", "memory_usable_ratio", "cpu", "block_device", "network_interface", "efi_support")
    MANUFACTURER_FIELD_NUMBER: _ClassVar[int]
    PRODUCT_FIELD_NUMBER: _ClassVar[int]
    SERIAL_NUMBER_FIELD_NUMBER: _ClassVar[int]
    MEMORY_INSTALLED_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USABLE_RATIO_FIELD_NUMBER: _ClassVar[int]
    CPU_FIELD_NUMBER: _ClassVar[int]
    BLOCK_DEVICE_FIELD_NUMBER: _ClassVar[int]
    NETWORK_INTERFACE_FIELD_NUMBER: _ClassVar[int]
    EFI_SUPPORT_FIELD_NUMBER: _ClassVar[int]
    manufacturer: str
    product: str
    serial_number: str
    memory_installed_bytes: int
    memory_usable_ratio: float
    cpu: _containers.RepeatedCompositeFieldContainer[CPU]
    block_device: _containers.RepeatedCompositeFieldContainer[BlockDevice]
    network_interface: _containers.RepeatedCompositeFieldContainer[NetworkInterface]
    efi_support: EFISupport
    def __init__(self, manufacturer: _Optional[str] = ..., product: _Optional[str] = ..., serial_number: _Optional[str] = ..., memory_installed_bytes: _Optional[int] = ..., memory_usable_ratio: _Optional[float] = ..., cpu: _Optional[_Iterable[_Union[CPU, _Mapping]]] = ..., block_device: _Optional[_Iterable[_Union[BlockDevice, _Mapping]]] = ..., network_interface: _Optional[_Iterable[_Union[NetworkInterface, _Mapping]]] = ..., efi_support: _Optional[_Union[EFISupport, str]] = ...) -> None: ...

class CPU(_message.Message):
    __slots__ = ("x86_64", "cores", "hardware_threads", "vendor", "model")
    class X86_64(_message.Message):
        __slots__ = ("family", "model", "stepping")
        FAMILY_FIELD_NUMBER: _ClassVar[int]
        MODEL_FIELD_NUMBER: _ClassVar[int]
        STEPPING_FIELD_NUMBER: _ClassVar[int]
        family: int
        model: int
        stepping: int
        def __init__(self, family: _Optional[int] = ..., model: _Optional[int] = ..., stepping: _Optional[int] = ...) -> None: ...
    X86_64_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    HARDWARE_THREADS_FIELD_NUMBER: _ClassVar[int]
    VENDOR_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    x86_64: CPU.X86_64
    cores: int
    hardware_threads: int
    vendor: str
    model: str
    def __init__(self, x86_64: _Optional[_Union[CPU.X86_64, _Mapping]] = ..., cores: _Optional[int] = ..., hardware_threads: _Optional[int] = ..., vendor: _Optional[str] = ..., model: _Optional[str] = ...) -> None: ...

class BlockDevice(_message.Message):
    __slots__ = ("vendor", "device_model", "serial_number", "wwn", "rotational", "capacity_bytes", "logical_block_size_bytes", "physical_block_size_bytes", "protocol", "critical_warning", "media_errors", "available_spare_ratio", "usage_ratio")
    class Protocol(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        PROTOCOL_UNKNOWN: _ClassVar[BlockDevice.Protocol]
        PROTOCOL_SCSI: _ClassVar[BlockDevice.Protocol]
        PROTOCOL_ATA: _ClassVar[BlockDevice.Protocol]
        PROTOCOL_NVME: _ClassVar[BlockDevice.Protocol]
        PROTOCOL_MMC: _ClassVar[BlockDevice.Protocol]
    PROTOCOL_UNKNOWN: BlockDevice.Protocol
    PROTOCOL_SCSI: BlockDevice.Protocol
    PROTOCOL_ATA: BlockDevice.Protocol
    PROTOCOL_NVME: BlockDevice.Protocol
    PROTOCOL_MMC: BlockDevice.Protocol
    VENDOR_FIELD_NUMBER: _ClassVar[int]
    DEVICE_MODEL_FIELD_NUMBER: _ClassVar[int]
    SERIAL_NUMBER_FIELD_NUMBER: _ClassVar[int]
    WWN_FIELD_NUMBER: _ClassVar[int]
    ROTATIONAL_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOGICAL_BLOCK_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PHYSICAL_BLOCK_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    CRITICAL_WARNING_FIELD_NUMBER: _ClassVar[int]
    MEDIA_ERRORS_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_SPARE_RATIO_FIELD_NUMBER: _ClassVar[int]
    USAGE_RATIO_FIELD_NUMBER: _ClassVar[int]
    vendor: str
    device_model: str
    serial_number: str
    wwn: bytes
    rotational: bool
    capacity_bytes: int
    logical_block_size_bytes: int
    physical_block_size_bytes: int
    protocol: BlockDevice.Protocol
    critical_warning: bool
    media_errors: int
    available_spare_ratio: float
    usage_ratio: float
    def __init__(self, vendor: _Optional[str] = ..., device_model: _Optional[str] = ..., serial_number: _Optional[str] = ..., wwn: _Optional[bytes] = ..., rotational: _Optional[bool] = ..., capacity_bytes: _Optional[int] = ..., logical_block_size_bytes: _Optional[int] = ..., physical_block_size_bytes: _Optional[int] = ..., protocol: _Optional[_Union[BlockDevice.Protocol, str]] = ..., critical_warning: _Optional[bool] = ..., media_errors: _Optional[int] = ..., available_spare_ratio: _Optional[float] = ..., usage_ratio: _Optional[float] = ...) -> None: ...

class NetworkInterface(_message.Message):
    __slots__ = ("mac", "driver", "supported_speed_bytes", "link_up", "current_speed_bytes")
    MAC_FIELD_NUMBER: _ClassVar[int]
    DRIVER_FIELD_NUMBER: _ClassVar[int]
    SUPPORTED_SPEED_BYTES_FIELD_NUMBER: _ClassVar[int]
    LINK_UP_FIELD_NUMBER: _ClassVar[int]
    CURRENT_SPEED_BYTES_FIELD_NUMBER: _ClassVar[int]
    mac: bytes
    driver: str
    supported_speed_bytes: _containers.RepeatedScalarFieldContainer[int]
    link_up: bool
    current_speed_bytes: int
    def __init__(self, mac: _Optional[bytes] = ..., driver: _Optional[str] = ..., supported_speed_bytes: _Optional[_Iterable[int]] = ..., link_up: _Optional[bool] = ..., current_speed_bytes: _Optional[int] = ...) -> None: ...
