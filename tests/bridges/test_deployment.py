"""The GitHub Action, the Helm chart and compose.yaml. Oracles: bash; the verb that they start; the
schemas of Kubernetes, by kubernetes-validate; the verdict of a promise that is kept or broken.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml
from helm_reader import RenderError, rendered, values_of
from search_setup import save_model

from labelwise.cli.app import app
from labelwise.decide import Promise
from labelwise.models import ModelSpec
from labelwise.server import ServeSettings
from labelwise.server.security import is_open

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "labelwise"
GIVEN = {"image.repository": "example/labelwise", "model.claim": "models", "tokenSecret": "token"}
FULL = GIVEN | {
    "index.claim": "library",
    "model.path": "runs/photos",
    "hosts": ["photos.example"],
    "env": {"LABELWISE_MAX_BATCH": 16},
}


def shell_of(name):
    """Return the script of a step of the action, and the names of its variables."""
    steps = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"]
    (step,) = [one for one in steps if one.get("name") == name]
    return step["run"], step.get("env", {})


@pytest.mark.parametrize(("level", "status"), [(0.05, 0), (0.99, 1)])
def test_the_action_fails_when_a_promise_is_broken(tmp_path, warm_python, level, status):
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "labelwise"
    command.write_text(f'#!/bin/sh\nexec "{warm_python}" -m labelwise "$@"\n')
    command.chmod(0o755)
    run = save_model(tmp_path / "a run; exit 0")
    spec = ModelSpec.load(run / "model.json")
    said = Promise("f", level, 0.95, 400, 400, level, "photos", "2026-01-01", "betting")
    spec.model_copy(update={"promises": (said.spec(),)}).save(run / "model.json")
    script, variables = shell_of("audit")
    assert set(variables) == {"PLACE", "ANSWERS", "STRICT"}
    summary = tmp_path / "summary.md"
    own = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    own |= {
        "PLACE": str(run),
        "ANSWERS": "",
        "STRICT": "false",
        "GITHUB_STEP_SUMMARY": str(summary),
    }
    own["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    own["PATH"] = f"{command.parent}{os.pathsep}{own['PATH']}"
    bash = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    done = subprocess.run(bash, env=own, capture_output=True, text=True)
    assert done.returncode == status, (done.stdout, done.stderr)
    assert ("broken" if status else "kept") in done.stdout
    assert done.stdout.strip() in summary.read_text()


def test_what_is_given_to_the_action_is_never_read_as_a_script():
    steps = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"]
    assert not [step for step in steps if "${{" in step.get("run", "")]


def objects(given):
    return {one["kind"]: one for one in rendered(CHART, given)}


def container(given):
    return objects(given)["Deployment"]["spec"]["template"]["spec"]["containers"][0]


@pytest.mark.parametrize("given", [GIVEN, FULL])
def test_the_chart_starts_the_server_with_options_that_it_has_in_a_small_container(given):
    own = container(given)
    serve = typer.main.get_command(app).commands["serve"]
    context = serve.make_context("serve", list(own["args"]))
    assert str(context.params["run"]) == "/model"
    assert (context.params["index"] is not None) == ("index.claim" in given)
    assert set(context.params["allow_host"]) >= {"photos", *given.get("hosts", [])}
    known = {parameter.envvar for parameter in serve.params}
    assert {one["name"] for one in own["env"]} <= known
    assert all(isinstance(one["value"], str) for one in own["env"])

    assert own["resources"]["limits"].keys() == {"cpu", "memory"}
    assert own["securityContext"]["readOnlyRootFilesystem"]
    assert not own["securityContext"]["allowPrivilegeEscalation"]
    pod = objects(given)["Deployment"]["spec"]["template"]["spec"]
    volumes = {one["name"] for one in pod["volumes"]}
    assert {one["name"] for one in own["volumeMounts"]} == volumes
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert is_open(own[probe]["httpGet"]["path"])  # asked without the token
        assert own[probe]["httpGet"]["httpHeaders"] == [{"name": "Host", "value": "localhost"}]


def test_what_must_be_given_is_asked_for():
    for name in GIVEN:
        with pytest.raises(RenderError, match=re.escape(name)):
            rendered(CHART, GIVEN | {name: ""})
    with pytest.raises(RenderError, match="written by one server"):
        rendered(CHART, FULL | {"replicas": 2})


def test_every_value_is_used_and_every_use_has_a_value():
    text = "".join(file.read_text() for file in (CHART / "templates").iterdir())
    used = set(re.findall(r"\.Values\.([a-zA-Z.]+)", text))
    leaves = set()
    for name, value in values_of(CHART, {}).items():
        nested = isinstance(value, dict) and value and name != "resources"
        leaves |= {f"{name}.{inner}" for inner in value} if nested else {name}
    assert used == leaves


@pytest.mark.parametrize("given", [GIVEN, FULL])
def test_kubernetes_schemas_accept_the_objects(given):
    validate = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate is not installed"
    )
    for one in rendered(CHART, given):
        validate.validate(one, validate.latest_version(), strict=True)


def test_the_temporary_folder_holds_the_bodies_that_may_wait_on_disk():
    """/tmp had 512 MiB while 2 GiB of bodies might be written to it."""
    for given, most in ((GIVEN, 2048), (GIVEN | {"bodyDisk": 300}, 300)):
        pod = objects(given)["Deployment"]["spec"]["template"]["spec"]
        (size,) = [one["emptyDir"]["sizeLimit"] for one in pod["volumes"] if "emptyDir" in one]
        assert int(size.removesuffix("Mi")) >= most + 64


def test_compose_limits_memory_processors_processes_and_the_temporary_folder():
    service = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["labelwise"]
    (place,) = service["tmpfs"]
    size = int(re.fullmatch(r"/tmp:size=(\d+)m", place)[1])
    most = ServeSettings()
    assert size << 20 >= most.max_queue // most.max_files * most.max_body  # of all that wait
    assert {"mem_limit", "cpus", "pids_limit"} <= service.keys()
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
