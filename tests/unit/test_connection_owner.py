"""Which user of this computer is at the other end of a connection."""

import os
import socket
import sys

import pytest

from shepherdctl.console.connection_owner import user_id


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_a_connection_belongs_to_its_user_until_it_is_closed() -> None:
    """Who closed it is not known any more, and anybody may have been it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as client:
            ends = client.getsockname(), server.getsockname()
            assert user_id(*ends) == os.getuid()
        assert user_id(*ends) == -1
