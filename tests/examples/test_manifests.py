"""Kubernetes manifests of examples/multihost: hosts, processes and devices add up, flags are those
of the programs, and what a JobSet starts runs with the variables that its controller sets."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.examples.test_deploy import PUBLIC, settings_of
from tests.multihost.launch import free_port

ROOT = Path(__file__).parents[2]
MULTIHOST = ROOT / "examples" / "multihost"


def documents(name: str) -> dict[str, Any]:
    found = yaml.safe_load_all((MULTIHOST / name).read_text())
    return {document["kind"]: document for document in found}


def expanded(words: list[str], variables: Mapping[str, str]) -> list[str]:
    """As the kubelet does before it starts a container."""
    return [re.sub(r"\$\((\w+)\)", lambda name: variables[name[1]], word) for word in words]


def container_of(pod: Mapping[str, Any]) -> dict[str, Any]:
    (container,) = pod["spec"]["containers"]
    volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    return container


def job_and_container() -> tuple[dict[str, Any], dict[str, Any], str]:
    """The job of the set, its container, and the name of its first pod."""
    jobs = documents("jobset.yaml")["JobSet"]
    (replicated,) = jobs["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    name = jobs["metadata"]["name"]
    # https://jobset.sigs.k8s.io: SET-JOB-REPLICA-INDEX, in the subdomain of the set.
    return job, container_of(job["template"]), f"{name}-{replicated['name']}-0-0.{name}"


def test_jobset_starts_as_many_processes_as_it_tells() -> None:
    job, container, first = job_and_container()
    assert job["completionMode"] == "Indexed" and job["backoffLimit"] == 0
    assert job["parallelism"] == job["completions"]
    assert f"--processes={job['parallelism']}" in container["args"]
    assert any(word.startswith(f"--coordinator={first}:") for word in container["args"])
    assert container["command"] == ["python", "spmd.py"] and (MULTIHOST / "spmd.py").exists()


@pytest.mark.slow
def test_processes_of_the_jobset_meet(tmp_path: Path) -> None:
    job, container, first = job_and_container()
    program = str(ROOT / "tests" / "examples" / "launched.py")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NPROC": "16", "JAX_PLATFORMS": "cpu"}
    port, processes = free_port(), []
    for index in range(job["parallelism"]):
        words = expanded(container["args"], {"JOB_COMPLETION_INDEX": str(index)})
        words = [re.sub(rf"{re.escape(first)}:\d+", f"127.0.0.1:{port}", word) for word in words]
        command = [sys.executable, program, *words, "--model", f"sum:{tmp_path}"]
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE))
    try:
        outs = [process.communicate(timeout=240)[0].decode() for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [out.count("met 0 1") for out in outs] == [1, 1], outs


def test_leaderworkerset_makes_one_server_of_its_nodes() -> None:
    found = documents("leaderworkerset.yaml")
    template = found["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]
    size, address = template["size"], "jengine-0.jengine.default"
    leader, worker = template["leaderTemplate"], template["workerTemplate"]
    given = []
    for index, container in enumerate((container_of(leader), container_of(worker))):
        variables = {
            "LWS_GROUP_SIZE": size,
            "LWS_WORKER_INDEX": index,
            "LWS_LEADER_ADDRESS": address,
        }
        command, verb, *words = [*container["command"], *container["args"]]
        assert (command, verb) == ("jengine", "serve")
        words = expanded(words, {name: str(value) for name, value in variables.items()})
        given.append(settings_of(words))
        args = given[-1][0]
        assert (args.nnodes, args.node_rank, args.master_addr) == (size, index, address)
        gpus = container["resources"]["limits"]["nvidia.com/gpu"]
        assert args.tensor_parallel_size == size * gpus and args.headless == bool(index)
    settings, container = given[0][1], container_of(leader)
    assert settings.port == container["ports"][0]["containerPort"] and settings.host == "0.0.0.0"
    assert leader["spec"]["terminationGracePeriodSeconds"] > settings.shutdown_timeout
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"] in PUBLIC
    service = found["Service"]
    assert service["spec"]["selector"] == leader["metadata"]["labels"]
    assert service["spec"]["ports"][0]["targetPort"] == container["ports"][0]["name"]
    assert service["metadata"]["name"] != found["LeaderWorkerSet"]["metadata"]["name"]


def test_kuberay_has_the_devices_that_its_program_asks_for() -> None:
    job = documents("kuberay.yaml")["RayJob"]["spec"]
    cluster = job["rayClusterSpec"]
    (group,) = cluster["workerGroupSpecs"]
    assert group["replicas"] == group["minReplicas"] == group["maxReplicas"]
    gpus = container_of(group["template"])["resources"]["limits"]["nvidia.com/gpu"]
    python, program, *flags = shlex.split(job["entrypoint"])
    assert python == "python" and (MULTIHOST / Path(program).name).exists()
    given = dict(zip(flags[::2], flags[1::2], strict=True))
    assert int(given.pop("--tensor-parallel-size")) == gpus * group["replicas"]
    text = (MULTIHOST / "ray_workers.py").read_text()
    assert all(f'"{flag}"' in text for flag in given)
    mounts = container_of(cluster["headGroupSpec"]["template"])["volumeMounts"]
    assert str(Path(program).parent) in {mount["mountPath"] for mount in mounts}
