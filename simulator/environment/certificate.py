"""A simulated certificate authority, and the server certificates that it signs."""

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

_AUTHORITY = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "simulated authority")])

_SIGNS_CERTIFICATES = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)
"""The key usage of an authority."""


class Authority:
    """A CA that follows RFC 5280 strictly."""

    def __init__(self, folder: Path) -> None:
        """Keep the CA's certificate in *folder*, and the last server certificate that it signed, with its key."""
        self._folder = folder
        self._key = generate_private_key(SECP256R1())
        self._identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        certificate = (
            _begin(_AUTHORITY, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_SIGNS_CERTIFICATES, critical=True)
            .add_extension(self._identifier, critical=False)
            .sign(self._key, SHA256())
        )
        self.path = folder / "ca.pem"
        """The certificate."""
        self.path.write_bytes(certificate.public_bytes(Encoding.PEM))

    def issue(self, address: str) -> Path:
        """Return the PEM file with key and certificate of a server at *address*, an IP address."""
        key = generate_private_key(SECP256R1())
        identifier = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self._identifier)
        certificate = (
            _begin(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, address)]), key.public_key())
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(identifier, critical=False)
            .sign(self._key, SHA256())
        )
        secret = self._folder / "server.pem"
        secret.write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            + certificate.public_bytes(Encoding.PEM)
        )
        return secret

    def context(self, address: str) -> ssl.SSLContext:
        """Return the TLS context of a server at *address*."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.issue(address))
        return context


def make(address: str, folder: Path) -> tuple[ssl.SSLContext, Path]:
    """Return the TLS context of a server at *address*, and the PEM file of the CA that signed its certificate."""
    authority = Authority(folder)
    return authority.context(address), authority.path


def _begin(subject: x509.Name, key: EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return x509.CertificateBuilder(
        _AUTHORITY,
        subject,
        key,
        x509.random_serial_number(),
        now - timedelta(days=1),
        now + timedelta(days=1),
    )
