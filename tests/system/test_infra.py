"""The deployment files: held against schemas, against what the code and the servers read, and against planted faults.

No container engine and no cluster takes part. `infra/image_check.sh` builds and runs the CPU image; `docs/image.md` and
`docs/service.md` say what that leaves untried.
"""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tasks.workers.run_pool import PROCESS_TEMPLATE

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "infra" / "compose.yaml"
KUBERNETES = ROOT / "infra" / "kubernetes"
BIN = Path(sys.executable).parent
OURS = re.compile(r"quantgate(-gpu)?:\d+\.\d+\.\d+")
# Read by boto3, and by whatever asks for the home folder.
OTHERS = {
    "AWS_ENDPOINT_URL",
    "AWS_DEFAULT_REGION",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "HOME",
    "DO_NOT_TRACK",
}
# By the entry point of PostgreSQL's image.
OTHERS |= {"POSTGRES_USER", "POSTGRES_PASSWORD", "PGDATA"}
# By Prefect, which lists no setting that has no default.
OTHERS |= {"PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "PREFECT_SERVER_API_AUTH_STRING"}
SECRET = re.compile(r"PASSWORD|SECRET|ACCESS_KEY|_KEY$")
Doc = dict[str, Any]


def compose() -> Doc:
    """The file, anchors and merges resolved."""
    return dict(yaml.safe_load(COMPOSE.read_text()))


def manifests() -> list[Doc]:
    """Every object of the Kubernetes files, and the job that the template makes."""
    files = sorted(path for path in KUBERNETES.glob("*.yaml") if path.name != "kustomization.yaml")
    return [doc for path in files for doc in yaml.safe_load_all(path.read_text())] + [template_job()]


def template_job() -> Doc:
    """The Kubernetes job of a flow run, with the template's defaults."""
    template = json.loads((KUBERNETES / "job-template.json").read_text())
    defaults = {name: value.get("default") for name, value in template["variables"]["properties"].items()}

    def fill(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: fill(item) for key, item in value.items()}
        if isinstance(value, list):
            return [fill(item) for item in value]
        if isinstance(value, str) and (whole := re.fullmatch(r"{{ (\w+) }}", value)):
            return defaults[whole[1]]
        return re.sub(r"{{ (\w+) }}", lambda found: str(defaults[found[1]]), value) if isinstance(value, str) else value

    job = dict(fill(template["job_configuration"]["job_manifest"]))
    # As prefect-kubernetes fills them in.
    job["spec"]["template"]["spec"]["containers"][0]["args"] = ["prefect", "flow-run", "execute"]
    return job


def containers(docs: list[Doc]) -> Iterator[tuple[str, Doc, Doc]]:
    """Every container with its name and its pod."""
    for doc in docs:
        if doc["kind"] in ("Deployment", "StatefulSet", "Job"):
            pod = doc["spec"]["template"]["spec"]
            for container in pod["containers"]:
                yield doc["metadata"].get("name", "run"), pod, container


def unpinned(image: str) -> bool:
    """Whether an image may be another one tomorrow, by its tag."""
    return not re.search(r":[\w.-]*\d+\.\d+[\w.-]*$|@sha256:[0-9a-f]{64}$", image)


def compose_faults(doc: Doc) -> set[str]:
    """What must not be in a compose file."""
    faults = set()
    for name, service in doc["services"].items():
        for port in service.get("ports", ()):
            if not str(port).startswith("127.0.0.1:"):
                faults.add(f"{name} publishes {port}")
        for key, value in service.get("environment", {}).items():
            must_be_told = SECRET.search(key) or re.search(r"://[^/@]*:[^/@]*@", str(value))
            if must_be_told and not re.search(r"\$\{\w+:\?[^}]+\}", str(value)):
                faults.add(f"{name} has a literal {key}")
        if unpinned(service["image"]):
            faults.add(f"{name} has the image {service['image']}")
        if not (service.get("read_only") and service.get("cap_drop") == ["ALL"] and service.get("security_opt")):
            faults.add(f"{name} is not hardened")
        if service.get("privileged") or any("docker.sock" in str(one) for one in service.get("volumes", ())):
            faults.add(f"{name} has the host")
        for other, wanted in service.get("depends_on", {}).items():
            ends = doc["services"].get(other, {}).get("restart") == "on-failure"
            if (wanted["condition"] == "service_completed_successfully") != ends:
                faults.add(f"{name} waits for {other} to be {wanted['condition']}")
            if not ends and "healthcheck" not in doc["services"].get(other, {}):
                faults.add(f"{name} waits for the health of {other}, which has no check")
    return faults


def manifest_faults(docs: list[Doc]) -> set[str]:
    """What must not be in the manifests."""
    faults = {f"{doc['metadata']['name']} is a secret in a file" for doc in docs if doc["kind"] == "Secret"}
    for name, pod, container in containers(docs):
        if unpinned(container["image"]):
            faults.add(f"{name} has the image {container['image']}")
        security = container.get("securityContext", {})
        if not pod.get("securityContext", {}).get("runAsNonRoot") or not security.get("readOnlyRootFilesystem"):
            faults.add(f"{name} is not hardened")
        if security.get("allowPrivilegeEscalation") is not False or security.get("capabilities") != {"drop": ["ALL"]}:
            faults.add(f"{name} may gain rights")
        resources = container.get("resources", {})
        if not all(resources.get(kind, {}).get(what) for kind in ("requests", "limits") for what in ("cpu", "memory")):
            faults.add(f"{name} has no bounds")
        for variable in container.get("env", ()):
            if "value" in variable and (SECRET.search(variable["name"]) or "@" in str(variable["value"])):
                faults.add(f"{name} has a literal {variable['name']}")
    for policy in (doc for doc in docs if doc["kind"] == "NetworkPolicy"):
        if any("to" not in rule for rule in policy["spec"].get("egress", ())):
            faults.add(f"{policy['metadata']['name']} lets traffic out to anywhere")
    if not any(d["kind"] == "NetworkPolicy" and d["spec"] == DENY for d in docs):
        faults.add("no policy denies by default")
    return faults


DENY = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}


def tool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """One of the checkers that are installed beside the interpreter."""
    program, *rest = map(str, arguments)
    return subprocess.run([str(BIN / program), *rest], capture_output=True, text=True, check=False)


def compose_check(path: Path) -> subprocess.CompletedProcess[str]:
    """A file against the compose specification."""
    return tool("check-jsonschema", "--builtin-schema", "vendor.compose-spec", path)


def test_the_files_follow_their_schemas(tmp_path: Path) -> None:
    """And the checkers see a planted misspelling."""
    done = compose_check(COMPOSE)
    assert done.returncode == 0, done.stdout
    files = sorted(path for path in KUBERNETES.glob("*.yaml") if path.name != "kustomization.yaml")
    run = template_job()
    # The checker wants the name that a server would give.
    run["metadata"]["name"] = run["metadata"].pop("generateName")
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(run))
    done = tool("kubernetes-validate", "--strict", *files, tmp_path / "run.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    (tmp_path / "compose.yaml").write_text(COMPOSE.read_text().replace("cap_drop:", "capdrop:"))
    assert compose_check(tmp_path / "compose.yaml").returncode != 0
    text = (KUBERNETES / "worker-gpu.yaml").read_text()
    (tmp_path / "worker.yaml").write_text(text.replace("replicas:", "replica:"))
    assert tool("kubernetes-validate", "--strict", tmp_path / "worker.yaml").returncode != 0


def test_the_kustomization_names_every_file() -> None:
    """And nothing that is not there."""
    kustomization = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
    files = {path.name for path in KUBERNETES.glob("*.yaml")} - {"kustomization.yaml"}
    assert set(kustomization["resources"]) == files
    generated = [name for one in kustomization["configMapGenerator"] for name in one.get("files", ())]
    assert generated and all((KUBERNETES / name).is_file() for name in generated)


def test_the_files_as_they_are_have_no_fault() -> None:
    """By the rules that the plants below show to hold."""
    assert compose_faults(compose()) == set()
    assert manifest_faults(manifests()) == set()


def plant(change: Callable[[Any], object], whole: Any) -> Any:
    """A copy with a change."""
    copied = copy.deepcopy(whole)
    change(copied)
    return copied


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s["mlflow"].update(ports=["5000:5000"]), "mlflow publishes"),
        (lambda s: s["s3"].update(ports=["0.0.0.0:8333:8333"]), "s3 publishes"),
        (lambda s: s["postgres"]["environment"].update(POSTGRES_PASSWORD="example"), "postgres has a literal"),
        (
            lambda s: s["mlflow"]["environment"].update(MLFLOW_BACKEND_STORE_URI="postgresql://u:p@h/d"),
            "a literal MLFLOW",
        ),
        (
            lambda s: s["receiver"]["environment"].update(QUANTGATE_WEBHOOK_SECRET="${SECRET:-x}"),
            "receiver has a literal",
        ),
        (lambda s: s["s3"].update(image="chrislusf/seaweedfs:latest"), "s3 has the image"),
        (lambda s: s["postgres"].update(image="postgres"), "postgres has the image"),
        (lambda s: s["runs"].update(read_only=False), "runs is not hardened"),
        (lambda s: s["runs"]["volumes"].append("/var/run/docker.sock:/x"), "runs has the host"),
        (lambda s: s["prefect"].pop("healthcheck"), "health of prefect"),
        (lambda s: s["runs"]["depends_on"]["deploy"].update(condition="service_started"), "runs waits for deploy"),
    ],
)
def test_a_fault_planted_in_compose_is_seen(change: Callable[[Doc], object], words: str) -> None:
    assert any(words in fault for fault in compose_faults(plant(lambda doc: change(doc["services"]), compose())))


def first(docs: list[Doc], kind: str, name: str) -> Doc:
    """An object by its kind and name."""
    return next(doc for doc in docs if (doc["kind"], doc["metadata"].get("name")) == (kind, name))


def container_of(docs: list[Doc], name: str) -> Doc:
    """The container of a deployment."""
    return dict(first(docs, "Deployment", name)["spec"]["template"]["spec"])["containers"][0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: container_of(d, "mlflow").update(image="quantgate:latest"), "mlflow has the image"),
        (lambda d: container_of(d, "runs")["securityContext"].pop("capabilities"), "runs may gain rights"),
        (lambda d: container_of(d, "runs")["securityContext"].pop("readOnlyRootFilesystem"), "runs is not hardened"),
        (lambda d: container_of(d, "worker-gpu")["resources"].pop("requests"), "worker-gpu has no bounds"),
        (
            lambda d: container_of(d, "mlflow")["env"].append({"name": "X", "value": "postgresql://u:p@h/d"}),
            "literal X",
        ),
        (lambda d: d.append({"kind": "Secret", "metadata": {"name": "s"}}), "a secret in a file"),
        (lambda d: d.remove(first(d, "NetworkPolicy", "default-deny")), "denies by default"),
        (lambda d: first(d, "NetworkPolicy", "runs-to-kubernetes")["spec"]["egress"][0].pop("to"), "to anywhere"),
    ],
)
def test_a_fault_planted_in_the_manifests_is_seen(change: Callable[[list[Doc]], object], words: str) -> None:
    assert any(words in fault for fault in manifest_faults(plant(change, manifests())))


def test_callers_choose_resources_of_a_run_and_no_code() -> None:
    """Any other variable is refused by the server."""
    variables = json.loads((KUBERNETES / "job-template.json").read_text())["variables"]
    assert variables["additionalProperties"] is False and PROCESS_TEMPLATE["variables"]["additionalProperties"] is False
    assert PROCESS_TEMPLATE["variables"]["properties"] == {}
    sizes = {f"{of}_{kind}" for of in ("cpu", "memory") for kind in ("request", "limit")}
    times = {"finished_job_ttl", "job_watch_timeout_seconds", "pod_watch_timeout_seconds"}
    assert set(variables["properties"]) == sizes | times | {"stream_output"}


def settings() -> dict[str, set[str]]:
    """Every variable that each file sets, `where: names`."""
    kustomization = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
    (shared,) = (one["literals"] for one in kustomization["configMapGenerator"] if one["name"] == "quantgate")
    return {
        "compose": {key for service in compose()["services"].values() for key in service.get("environment", {})},
        "config map": {literal.partition("=")[0] for literal in shared},
        "manifests": {one["name"] for _, _, container in containers(manifests()) for one in container.get("env", ())},
        "template": set(PROCESS_TEMPLATE["job_configuration"]["env"]),
    }


def readers() -> set[str]:
    """Every variable that something reads: our code, Prefect's settings, MLflow's, its server's options, boto3."""
    import mlflow.environment_variables
    from prefect.settings import get_current_settings

    folders = (ROOT / "flows", ROOT / "tasks", ROOT / "infra" / "receiver")
    code = "".join(path.read_text() for folder in folders for path in folder.rglob("*.py"))
    mlflow_names = {name.removeprefix("_") for name in vars(mlflow.environment_variables) if "MLFLOW" in name}
    # In a process of its own: importing MLflow's command line warns.
    code_of_options = "from mlflow.cli import server; print(*[one.envvar for one in server.params if one.envvar])"
    command = [sys.executable, "-W", "ignore", "-c", code_of_options]
    options = set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    prefect_names = set(get_current_settings().to_environment_variables(exclude_unset=False, include_secrets=True))
    return set(re.findall(r'"(QUANTGATE_[A-Z_]+)"', code)) | mlflow_names | options | prefect_names | OTHERS


def test_what_is_set_is_read() -> None:
    """A name that nobody reads is a setting that does not hold."""
    known = readers()
    unread = {where: names - known for where, names in settings().items()}
    assert {where: names for where, names in unread.items() if names} == {}
    assert "PREFECT_SERVER_ANALYTIC_ENABLED" not in known and "MLFLOW_DISABLE_TELEMETRI" not in known


def test_telemetry_is_off_in_all_that_would_send_it() -> None:
    """Each service of our image, by all four names."""
    names = {"DO_NOT_TRACK", "PREFECT_SERVER_ANALYTICS_ENABLED", "MLFLOW_DISABLE_TELEMETRY"}
    for name, service in compose()["services"].items():
        if OURS.fullmatch(service["image"]):
            assert service["environment"].keys() >= names, name
    assert settings()["config map"] >= names
    for name, _, container in containers(manifests()):
        if OURS.fullmatch(container["image"]) or "prefect" in container["image"]:
            assert {"configMapRef": {"name": "quantgate"}} in container["envFrom"], name


def commands() -> list[tuple[str, list[str]]]:
    """Every command that an image of ours is given, with where; its own entry point is `quantgate`."""
    found = []
    for name, service in compose()["services"].items():
        if OURS.fullmatch(service["image"]):
            found.append((f"compose {name}", service.get("entrypoint", ["quantgate"]) + service.get("command", [])))
    for name, _, container in containers(manifests()):
        if OURS.fullmatch(container["image"]):
            found.append((f"kubernetes {name}", container.get("command", ["quantgate"]) + container.get("args", [])))
    return found


@pytest.mark.slow
def test_every_command_is_one_that_its_program_knows() -> None:
    """Its own help names each subcommand and each long option; code that is handed over compiles."""
    seen: dict[tuple[str, ...], str] = {}
    for where, command in commands():
        if command[:2] == ["python", "-c"]:
            compile(command[2], where, "exec")
            continue
        words = [word.removeprefix("/usr/bin/") for word in command if word != "/usr/bin/env"]
        options = [word for word in words if word.startswith("--")]
        # What follows the program is a subcommand until the first option or address.
        calls = list(words[: 3 if words[0] == "python" else 1])
        for word in words[len(calls) :]:
            if not re.fullmatch(r"[a-z-]+", word) or word.startswith("-"):
                break
            calls.append(word)
        if calls[:2] == ["quantgate", "webhook"] and not (ROOT / "infra" / "receiver").is_dir():
            continue
        if tuple(calls) not in seen:
            seen[tuple(calls)] = help_of(calls)
        assert all(re.search(rf"{re.escape(option)}\b", seen[tuple(calls)]) for option in options), (where, options)


def help_of(calls: list[str]) -> str:
    """What a program says of itself."""
    program = [sys.executable, "-m", "flows.cli.app"] if calls[0] == "quantgate" else [str(BIN / calls[0])]
    env = os.environ | {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*program, *calls[1:], "--help"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (calls, done.stderr)
    return done.stdout


def test_compose_secrets_are_in_the_example_without_values() -> None:
    """And nothing else is asked for; git takes no filled-in copy, and no image either."""
    asked = set(re.findall(r"\$\{(\w+):\?", COMPOSE.read_text()))
    lines = (ROOT / "infra" / ".env.example").read_text().splitlines()
    told = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    assert told == dict.fromkeys(asked, "")
    for name in (".gitignore", ".dockerignore"):
        assert re.search(r"^/?infra/\.env$", (ROOT / name).read_text(), re.MULTILINE), name


def test_the_gpu_is_asked_for_where_it_is_used_and_nowhere_else() -> None:
    """One device in either file; in compose only by its profile."""
    services = compose()["services"]
    assert [name for name, one in services.items() if "gpu" in one.get("profiles", ())] == ["worker-ort-cuda"]
    (device,) = services["worker-ort-cuda"]["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["count"], device["capabilities"]) == ("nvidia", 1, ["gpu"])
    limits = {name: one["resources"]["limits"].get("nvidia.com/gpu") for name, _, one in containers(manifests())}
    assert {name for name, count in limits.items() if count} == {"worker-gpu"} and limits["worker-gpu"] == 1


def test_the_images_have_what_the_commands_need() -> None:
    """The receiver and the deployments are copied; a flow run's job overrides an entry point that would take its words."""
    text = (ROOT / "Dockerfile").read_text()
    assert text.count("COPY infra infra") == 2 and 'ENTRYPOINT ["quantgate"]' in text
    (container,) = template_job()["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["/usr/bin/env"]
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version
    images = [service["image"] for service in compose()["services"].values()]
    images += [container["image"] for _, _, container in containers(manifests())]
    ours = {image.partition(":")[2] for image in images if OURS.fullmatch(image)}
    assert ours == {version[1]}
    prefect = re.search(r"^prefect==(\S+)", (ROOT / "requirements" / "cpu.txt").read_text(), re.MULTILINE)
    assert prefect and f"prefecthq/prefect:{prefect[1]}-python3.11-kubernetes" in images


def test_image_check_names_the_programs_that_it_lacks(tmp_path: Path) -> None:
    """Before it writes anything."""
    (tmp_path / "bin").mkdir()
    for program in ("bash", "dirname", "realpath"):
        (tmp_path / "bin" / program).symlink_to(Path("/usr/bin") / program)
    script = ROOT / "infra" / "image_check.sh"
    env = {"PATH": str(tmp_path / "bin")}
    done = subprocess.run([script, tmp_path / "work"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "apt-get install podman mmdebstrap" in done.stderr, done.stderr
    assert not (tmp_path / "work").exists()


def test_images_install_nothing_beside_the_locks() -> None:
    """All with hashes but PyTorch, whose build depends on the machine; what it needs is locked, and it brings nothing else."""
    installs = re.findall(r"uv pip install [^\n]*-r requirements/\S+", (ROOT / "Dockerfile").read_text())
    assert len(installs) == 4
    assert all("--require-hashes" in one or ("--no-deps" in one and one.endswith("torch.txt")) for one in installs)
    needed = [Requirement(one) for one in metadata.requires("torch") or ()]
    names = {canonicalize_name(one.name) for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})}
    names = {name for name in names if not name.startswith(("nvidia-", "cuda-", "triton"))}
    for lock in ("cpu", "gpu"):
        locked = set(re.findall(r"^([\w.-]+)==", (ROOT / "requirements" / f"{lock}.txt").read_text(), re.MULTILINE))
        assert len(names) >= 6 and names <= locked, names - locked
