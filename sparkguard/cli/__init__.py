"""The command line: ``sparkguard …``.

Exit codes: 0 all is well; 1 a problem was found, or a command could not do its
work; 2 the command line itself is wrong.
"""

from __future__ import annotations

import typer

from sparkguard.cli.audit import audit
from sparkguard.cli.config import config_app
from sparkguard.cli.dlq import dlq_app
from sparkguard.cli.keep import compact, resolve
from sparkguard.cli.plugins import list_plugins
from sparkguard.cli.redrive import redrive
from sparkguard.cli.redrives import redrives
from sparkguard.cli.retry_service import retry_service
from sparkguard.cli.status import status
from sparkguard.cli.stop import stop

app = typer.Typer(
    name="sparkguard",
    help=(
        "Exception handling and dead letters for PySpark pipelines.\n\n"
        "Exit codes: 0 all is well, 1 a problem was found, 2 the command line is wrong."
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(config_app, name="config")
app.add_typer(dlq_app, name="dlq")
dlq_app.command("resolve")(resolve)
dlq_app.command("compact")(compact)
dlq_app.command("redrive")(redrive)
dlq_app.command("redrives")(redrives)
app.command("audit")(audit)
app.command("plugins")(list_plugins)
app.command("retry-service")(retry_service)
app.command("status")(status)
app.command("stop")(stop)


@app.callback(invoke_without_command=True)
def _root(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    if version:
        from sparkguard.core.version import VERSION

        typer.echo(VERSION)
        raise typer.Exit
