"""What the sections share: names, durations, logins."""

import errno
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from service.units import Duration

T = TypeVar("T")
NAME = re.compile(r"^[a-z][a-z0-9_]{0,62}\Z")
_PORT = "([0-5]?[0-9]{1,4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
HOST = rf"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(:{_PORT})?"
LARGEST = 1e140
"""The limit of every measure: the squares of larger values, added up, could be infinite, and the deviation no number."""
YEAR_MS = 366 * 86_400_000
"""The longest duration, which overflows no clock and no integer."""


def check_name(value: str) -> str:
    """Return a name as it is; raise ValueError for another text."""
    if not NAME.match(value):
        raise ValueError("must be a name: lower-case letters, digits and _, a letter first, at most 63")
    return value


def rule(holds: Callable[[T], object], text: str) -> AfterValidator:
    """Return a check of a key's value, and what it must be."""

    def check(value: T) -> T:
        if not holds(value):
            raise ValueError(text)
        return value

    return AfterValidator(check)


Positive = Annotated[Duration, Field(gt=0, le=YEAR_MS)]
NotNegative = Annotated[Duration, Field(ge=0, le=YEAR_MS)]
Name = Annotated[str, AfterValidator(check_name)]
Text = Annotated[str, rule(str.strip, "must not be blank")]


def read_secret(path: Path) -> str:
    """Return the text of a password's file without space around it. Raises OSError, also for a file that is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8-sig").strip()  # some editors begin a file with a mark
    except UnicodeDecodeError:  # has the bytes of the password
        raise OSError(errno.EILSEQ, "the file is not UTF-8 text", str(path)) from None


class Section(BaseModel):
    """A table of the settings. The text behind a field is its description, which the site and the example have."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    @field_validator("*")
    @classmethod
    def _has_no_nul(cls, value: Any) -> Any:
        if isinstance(value, str | Path) and "\0" in str(value):  # TOML allows it, and no path may have it
            raise ValueError("must not have the character NUL")
        return value

    @model_validator(mode="after")
    def _has_no_conflict(self) -> Self:
        if (conflict := next(self.conflicts(), None)) is not None:
            raise ValueError(conflict)
        return self

    def conflicts(self) -> Iterator[str]:
        """Yield what does not fit between two keys of the section."""
        yield from ()


class Login(Section):
    """A section with a user and a password, which is set here or in a file."""

    user: str | None = Field(default=None, examples=["tidemark"])
    """Name of the login. Default: none."""
    password: SecretStr | None = Field(default=None, examples=["..."])
    """The password, unless password_file has it. TIDEMARK_<SECTION>__PASSWORD is a safer place. Default: none."""
    password_file: Path | None = Field(default=None, examples=["secrets/password"])
    """File with the password. It must exist on the executors' hosts, too. Default: none."""

    def secret(self) -> str | None:
        """Return the password, from the file if one is named. Raises OSError as `read_secret`."""
        if self.password_file is not None:
            return read_secret(self.password_file)
        return self.password.get_secret_value() if self.password is not None else None

    def properties(self) -> dict[str, str]:
        """Return `user` and `password` for the driver of a database. Raises OSError as `secret`."""
        given = {"user": self.user, "password": self.secret()}
        return {name: value for name, value in given.items() if value is not None}

    def masked(self, text: str) -> str:
        with suppress(OSError):  # the file may be about to be replaced
            secret = self.secret()
            text = text.replace(secret, "***") if secret else text
        return text


class Client(Login):
    """A login with TLS files and with options of the client library."""

    ca_file: Path | None = Field(default=None, examples=["ca.pem"])
    """PEM file of the certificates to trust. Default: the system's."""
    certificate: Path | None = Field(default=None, examples=["tidemark.pem"])
    """PEM file of the client's own certificate, for mutual TLS. Default: none."""
    key: Path | None = Field(default=None, examples=["secrets/tidemark.key"])
    """PEM file of the certificate's private key: PKCS #8, without a password. Default: none."""
    options: Mapping[str, str] = Field(default_factory=dict, repr=False, examples=[{"security.protocol": "SSL"}])
    """More options of the client library, in librdkafka's names. They replace what the other keys say. Names that
    differ in Spark's Java client are translated. Default: none.
    """
