"""The dashboard: what Grafana imports, and only metrics that there are."""

import json
import re
from pathlib import Path

from prometheus_client import REGISTRY

import sparkguard_prometheus

DASHBOARD = json.loads(sparkguard_prometheus.dashboard())
EXPORTED = {
    f"{metric.name}_total" if metric.type == "counter" else metric.name
    for metric in REGISTRY.collect()
    if metric.name.startswith("sparkguard_")
}


def queries() -> list[str]:
    """Every expression, that of the variable too."""
    panels = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return panels + [
        it["definition"] for it in DASHBOARD["templating"]["list"] if "definition" in it
    ]


def test_only_metrics_that_there_are() -> None:
    """Each name in an expression is exported."""
    for query in queries():
        names = set(re.findall(r"sparkguard_\w+", query))
        assert names
        assert names <= EXPORTED, query


def test_labels_of_the_legend() -> None:
    """What a legend shows is kept by its expression."""
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            kept = set(re.findall(r"\w+", ",".join(re.findall(r"by \(([^)]*)\)", target["expr"]))))
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= kept


def test_shape() -> None:
    """Grafana imports it: a schema, panels with targets side by side, a data source to choose."""
    assert DASHBOARD["schemaVersion"] >= 36
    assert DASHBOARD["title"]
    (source,) = (it for it in DASHBOARD["templating"]["list"] if it["type"] == "datasource")
    assert (source["name"], source["query"]) == ("datasource", "prometheus")
    chosen = {"type": "prometheus", "uid": "${datasource}"}
    ids, places = set(), set()
    for panel in DASHBOARD["panels"]:
        assert panel["datasource"] == chosen
        assert {target["refId"] for target in panel["targets"]} <= {"A", "B", "C"}
        assert all(target["datasource"] == chosen for target in panel["targets"])
        ids.add(panel["id"])
        places.add((panel["gridPos"]["x"], panel["gridPos"]["y"]))
    assert len(ids) == len(places) == len(DASHBOARD["panels"])


def test_readme_has_every_metric() -> None:
    """What is exported is in the table."""
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    assert [name for name in sorted(EXPORTED) if f"`{name}`" not in readme] == []
