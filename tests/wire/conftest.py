"""What the tests of connections share."""

from tests.wire.certificates import certificates as certificates
