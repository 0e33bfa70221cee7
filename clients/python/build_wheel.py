"""Builds the wheel with the standard library alone, so that `pip install` needs no network."""

import base64, hashlib, pathlib, zipfile

NAME, VERSION = "nearmetal_client", "0.1.0"
HERE = pathlib.Path(__file__).parent
METADATA = f"""Metadata-Version: 2.1
Name: nearmetal-client
Version: {VERSION}
Summary: A trading client of the exchange of nearmetal, without dependencies.
Requires-Python: >=3.9
License: MIT OR Apache-2.0
"""
WHEEL = "Wheel-Version: 1.0\nGenerator: nearmetal\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Writes the wheel into a folder; its name (PEP 517)."""
    files = {f"{NAME}/{path.name}": path.read_bytes()
             for path in sorted((HERE / NAME).iterdir()) if path.suffix in (".py", ".typed")}
    info = f"{NAME}-{VERSION}.dist-info"
    files[f"{info}/METADATA"] = METADATA.encode()
    files[f"{info}/WHEEL"] = WHEEL.encode()
    record = ""
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(content)}\n"
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    wheel = f"{NAME}-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(wheel_directory) / wheel, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return wheel
