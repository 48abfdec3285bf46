"""sparkguard retry-service: hold what was put off until it is due, and send it back."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import typer

from sparkguard.cli.answer import say_json, told

_SHORTEST = 0.1


def retry_service(
    config: Path = typer.Option(..., help="The settings file of the app."),
    sink: str = typer.Option("retry", help="Name of the sink that is the retry topic."),
    checkpoint: str = typer.Option(
        "", help="Where Spark keeps what waits; a folder of the app's state, if none is given."
    ),
    trigger: str = typer.Option("1s", help="From one look at what is due to the next."),
    buckets: int = typer.Option(
        8, min=1, help="Parts of what is due at one time, to spread the work."
    ),
    at_once: int = typer.Option(20_000, min=1, help="Messages taken from the topic in one batch."),
    source: list[str] = typer.Option(
        [], help="An option of Spark's Kafka source, as kafka.security.protocol=SSL; repeatable."
    ),
    master: str = typer.Option("", help="Spark's master; local[*], if nothing else says."),
    spark_conf: list[str] = typer.Option(
        [], help="A setting of Spark, as spark.jars.packages=…; repeatable."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Hold the records that `retry_later` put off, and send each back when it is due.

    A Spark query from the retry topic to the redrive topic of the app; it runs until SIGTERM or
    `sparkguard stop`, and goes on where it was. Spark needs its Kafka connector.

    For example:

        sparkguard retry-service --config guard.yaml \
            --spark-conf spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0

        spark-submit $(which sparkguard) retry-service --config guard.yaml --trigger 5s
    """
    from sparkguard.config.duration import seconds

    # The functions that the settings name lie beside them, as a rule.
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        every = seconds(trigger)
    except ValueError as error:
        raise typer.BadParameter(f"--trigger: {error}") from None
    if every < _SHORTEST:
        raise typer.BadParameter("--trigger: at least 100ms.")
    conf, options = _pairs(spark_conf, "--spark-conf"), _pairs(source, "--source")
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("sparkguard").setLevel(logging.INFO)
    with told(as_json=as_json):
        from sparkguard.config.load import load
        from sparkguard.retry_service.service import Service, session

        service = Service(
            settings=load(config),
            sink=sink,
            checkpoint=checkpoint,
            trigger=round(every * 1000),
            buckets=buckets,
            at_once=at_once,
            source=options,
        )
        service.run(lambda: session(master, conf))
    if as_json:
        say_json({"ok": True, "state": service.state.path})
    else:
        typer.echo("Stopped between two batches; what waits is in the checkpoint.")


def _pairs(given: list[str], option: str) -> dict[str, str]:
    for one in given:
        if "=" not in one:
            raise typer.BadParameter(f"{option} {one!r}: write it as key=value.")
    return {key: value for key, _, value in (one.partition("=") for one in given)}
