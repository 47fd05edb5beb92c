"""Write certificates/: a CA, the server's certificate for 127.0.0.1, and a key pair for each device.

usage: python certificates.py NAME...      the names of the key pairs, for example device-0 device-1
"""

import sys
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

FOLDER = Path("certificates")
PRIVATE = {"encryption_algorithm": serialization.NoEncryption()}


def write(name: str, content: bytes) -> None:
    """Write a file that only its owner may read."""
    path = FOLDER / name
    path.touch(mode=0o600)
    path.write_bytes(content)


def certificate(
    subject: str, key: ec.EllipticCurvePrivateKey, issuer: str, issuer_key: ec.EllipticCurvePrivateKey
) -> x509.Certificate:
    """Return a certificate, valid for a year; a self-signed one is that of a CA."""
    now, is_ca = datetime.now(UTC), subject == issuer
    unused = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    usage = dict.fromkeys((*unused, "encipher_only", "decipher_only"), False)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=365))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        .add_extension(
            x509.KeyUsage(digital_signature=not is_ca, key_cert_sign=is_ca, crl_sign=is_ca, **usage), critical=True
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    if not is_ca:
        names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


def main(names: list[str]) -> None:
    """Write all files."""
    FOLDER.mkdir(exist_ok=True)
    pem, ssh = serialization.Encoding.PEM, serialization.Encoding.OpenSSH
    ca_key, server_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    ca = certificate("airfed example CA", ca_key, "airfed example CA", ca_key)
    server = certificate("localhost", server_key, "airfed example CA", ca_key)
    write("ca.crt", ca.public_bytes(pem))
    write("server.crt", server.public_bytes(pem) + ca.public_bytes(pem))
    write("server.key", server_key.private_bytes(pem, serialization.PrivateFormat.PKCS8, **PRIVATE))
    for name in names:
        key = ec.generate_private_key(ec.SECP384R1())
        write(name, key.private_bytes(pem, serialization.PrivateFormat.OpenSSH, **PRIVATE))
        write(f"{name}.pub", key.public_key().public_bytes(ssh, serialization.PublicFormat.OpenSSH))


if __name__ == "__main__":
    main(sys.argv[1:])
