"""An installation from the operator's command to the machine and back, in the environment that the demo has as well."""

from contextlib import closing

from shepherd_core.bmdb.agents import installation
from shepherd_core.bmdb.connection import Connection
from shepherd_core.domain.clock import SystemClock
from shepherd_core.domain.pb.callback_pb2 import OSInstallationReport

from simulator.environment.environment import Environment, EnvironmentSettings
from simulator.lambda_.invoke import event, make_work
from tests.support.command_line import CommandLine
from tests.support.waiting import eventually

IMAGE = ("--image", "https://images.example.com/os.img", "--sha256", "0f" * 32, "--yes")


def test_an_agent_carries_out_what_the_environment_s_operator_requests() -> None:
    with Environment(EnvironmentSettings(machines=1, speed=120, scheduled=False)) as environment:
        for function in ("provisioner", "initializer"):
            make_work(environment, function)
            assert environment.functions.invoke(function, event(function)).error is None
        aws = {
            name: value for name, value in environment.configs["initializer"].environment.items() if name[:4] == "AWS_"
        }
        shepherdctl = CommandLine(environment.bmdb_settings, {**aws, "SHEPHERD_INSTALLATION_KEY_SOURCE": ""})
        (machine,) = environment.machines()
        requested = shepherdctl.process("machine", "install", str(machine.machine_id), *IMAGE)
        assert requested.returncode == 0, requested.stderr
        with closing(Connection(environment.bmdb_settings, environment.postgres.password, SystemClock())) as connection:
            report = eventually(lambda: installation.load(connection, machine.machine_id).report)
        assert report is not None
        assert "no installation command is configured" in OSInstallationReport.FromString(report.raw).error.error
