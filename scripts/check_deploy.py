#!/usr/bin/env python3
"""Checks deploy/ as far as that goes without a server, a cluster or a container engine.

The expressions of the dashboard must parse as PromQL, and alerts_test.yml, which promtool runs, must have a case for
every alert. The Helm chart must pass Helm's own lint and render, under several sets of
values, to what the schemas of Kubernetes allow; other sets it must refuse. So must the manifests of clusters. Whether
flags, ports, paths and metrics are those of the server is for tests/python/repository/test_deploy.py, which has one.

Prints one line a finding and exits 1 if there are any. Needs the packages of scripts/requirements-lint.txt.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import promql_parser
import yaml

try:
    import helm_python
except ImportError:  # it has no package for some machines
    helm_python = None  # type: ignore[assignment]

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"
CHART = DEPLOY / "helm" / "sparseagg"
# The oldest that Chart.yaml takes, and one of today.
KUBERNETES = ("1.25", "1.34")

ACCEPTED: dict[str, dict[str, Any]] = {
    "the defaults": {},
    "all options": {
        "image": {"repository": "registry.example/sparseagg", "tag": "1"},
        "imagePullSecrets": [{"name": "registry"}],
        "config": {"max-open-rounds": 1_000_000, "max-message-bytes": "1MiB", "log-format": "text"},
        "gpu": {"enabled": True, "runtimeClassName": "nvidia"},
        "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
        "networkPolicy": {"metrics": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]},
        "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "podDisruptionBudget": {"enabled": True},
        "podAnnotations": {"a": "b"},
        "nodeSelector": {"a": "b"},
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "podLabels": {"a": "b"},
        "priorityClassName": "high",
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
        ],
        "env": [{"name": "A", "value": "b"}],
        "extraVolumes": [{"name": "extra", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "extra", "mountPath": "/extra"}],
        "podSecurityContext": {"runAsUser": 20000},
        "securityContext": {"privileged": False},
        "data": {"size": "50Gi", "storageClass": "fast"},
        "ingress": {"enabled": True, "className": "nginx", "host": "agg.example.org", "tlsSecret": "ingress-tls"},
    },
    "no network policy": {"networkPolicy": {"enabled": False}},
    "no HTTP": {"http": {"enabled": False}},
    "half a core": {"cpu": "500m"},
    "web tokens": {
        "credentials": {"jwtKeySecret": "jwt"},
        "config": {"jwt-algorithm": "EdDSA", "jwt-issuer": "https://idp.example", "jwt-audience": "sparseagg"},
    },
    "tokens alone": {"credentials": {"tokensSecret": "tokens"}},
    "privacy": {"noiseKeySecret": "noise"},
    "tokens and client certificates": {
        "credentials": {"tokensSecret": "tokens", "tlsSecret": "tls", "clientCertificates": True}
    },
}
REFUSED: dict[str, dict[str, Any]] = {
    "a second replica": {"replicas": 2},
    "less memory than the server can keep to": {"memoryLimitMiB": 255},
    "a flag that there is none of": {"config": {"max-open-roundz": 1}},
    "a flag that the chart sets itself": {"config": {"memory-limit": "8GiB"}},
    "a gateway at another port than the chart's": {"config": {"http-address": "0.0.0.0:9000"}},
    "client certificates without TLS": {"credentials": {"clientCertificates": True}},
    "a file that the chart does not mount": {"config": {"jwt-key": "/run/secrets/jwt"}},
    "a number of cores that is none": {"cpu": "lots"},
    "no core": {"cpu": "0"},
    "a level that there is none of": {"config": {"log-level": "loud"}},
    "no values of HTTP": {"http": None},
    "no credentials' values": {"credentials": None},
    "a size that is none": {"data": {"size": "large"}},
    "an Ingress of no name": {"ingress": {"enabled": True}},
    "a network policy that lets everybody call": {"networkPolicy": {"clients": []}},
}


def check_queries() -> Iterator[str]:
    """A case for every alert, and the dashboard's expressions; promtool parses those of the alerts."""
    groups = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text(encoding="utf-8"))["groups"]
    cases = (DEPLOY / "prometheus/alerts_test.yml").read_text(encoding="utf-8")
    alerts = [rule["alert"] for group in groups for rule in group["rules"]]
    yield from (f"alerts_test.yml: no case for {name}" for name in alerts if f'alertname="{name}"' not in cases)
    for panel in json.loads((DEPLOY / "grafana/sparseagg.json").read_text(encoding="utf-8"))["panels"]:
        for target in panel.get("targets", []):  # a row has none
            try:  # Grafana puts a duration in the variable's place.
                promql_parser.parse(target["expr"].replace("$__rate_interval", "1m"))
            except ValueError as error:
                yield f"sparseagg.json: {panel['title']}: {error}"


def check_manifests(name: str, text: str) -> Iterator[str]:
    """Against the schemas of Kubernetes, which has none of operators' resources; of KubeRay's, the pods."""
    for manifest in filter(None, yaml.safe_load_all(text)):
        checked = [manifest]
        if manifest["apiVersion"].startswith("ray.io/"):
            groups = [manifest["spec"]["headGroupSpec"], *manifest["spec"]["workerGroupSpecs"]]
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}}
            checked = [{**pod, **group["template"]} for group in groups]
        elif manifest["apiVersion"].startswith("monitoring.coreos.com/"):
            checked = []
        for each, version in itertools.product(checked, KUBERNETES):
            try:
                kubernetes_validate.validate(each, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                yield f"{name}: Kubernetes {version}: {error.message}"


def check_chart() -> Iterator[str]:
    """Helm's lint, and the chart under ACCEPTED and REFUSED values."""
    report = helm_python.lint(str(CHART), strict=True)
    yield from (f"{each['path']}: {each['error']}" for each in report["messages"] if each["severity"] >= 2)
    with helm_python.Chart.load(CHART) as chart:
        for name, values in ACCEPTED.items():
            try:
                chart.validate_schema(values)
                rendered = chart.render(values, name="release", namespace="default")
            except helm_python.HelmError as error:
                yield f"chart with {name}: {error}"
                continue
            for file, text in rendered.items():
                if file.endswith(".yaml"):
                    yield from check_manifests(f"chart with {name}: {file}", text)
        for name, values in REFUSED.items():
            try:
                chart.validate_schema(values)
            except helm_python.HelmValuesError:
                continue
            yield f"chart: values.schema.json allows {name}: {values}"


def main() -> int:
    """Runs the command; returns its exit status."""
    findings = [*check_queries()]
    for path in sorted([*DEPLOY.glob("statefulset/*.yaml"), *DEPLOY.glob("kuberay/*.yaml")]):
        findings += check_manifests(f"{path.parent.name}/{path.name}", path.read_text(encoding="utf-8"))
    if helm_python is not None:
        findings += check_chart()
    else:
        print("check_deploy: the chart was not checked: helm-python-sdk is not installed")
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
