#!/usr/bin/env python3
"""Holds the packaging files to the binary that they are for: check.py BINARY, from the root of the repository.

Each file is parsed; what it says of commands, settings, ports and times to stop is compared with the binary and with the
other files. Needs python3-yaml."""
import json
import os
import re
import subprocess
import sys
import tempfile

import yaml

binary = os.path.abspath(sys.argv[1])
root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
faults = []
STOP = 35


def text(name):
    with open(os.path.join(root, name), encoding="utf-8") as file:
        return file.read()


def must(holds, what):
    if not holds:
        faults.append(what)


def findings(environment, arguments=()):
    """What `tidings check --offline` says with these settings alone."""
    with tempfile.TemporaryDirectory() as empty:
        command = [binary, "check", "--offline", "--json", *arguments]
        clean = {"PATH": os.environ["PATH"], **environment}
        answer = subprocess.run(command, capture_output=True, text=True, env=clean, cwd=empty)
    try:
        return json.loads(answer.stdout)["findings"]
    except (ValueError, KeyError):
        return [{"severity": "fault", "setting": "", "text": answer.stderr or answer.stdout}]


def settings_hold(where, environment, arguments=()):
    for finding in findings(environment, arguments):
        must(finding["severity"] != "fault", f"{where}: {finding['setting']}: {finding['text']}")


def command_exists(where, words):
    shown = subprocess.run([binary, *words, "--help"], capture_output=True, text=True)
    must(shown.returncode == 0, f"{where}: there is no command {' '.join(words)}")


def dockerfile():
    lines = re.sub(r"\\\n", " ", text("Dockerfile")).splitlines()
    steps = [line.split(None, 1) for line in lines if line.strip() and not line.lstrip().startswith("#")]
    last = max(at for at, step in enumerate(steps) if step[0] == "FROM")
    final = steps[last:]
    must(final[0][1] == "scratch", "Dockerfile: the final stage holds more than the binary")
    named = {}
    for name, rest in final:
        named.setdefault(name, []).append(rest)
    copied = sorted(rest.split()[-1] for rest in named["COPY"])
    must(copied == ["/data", "/etc/ssl/certs/ca-certificates.crt", "/tidings"], f"Dockerfile: the final stage copies {copied}")
    must("RUN" not in named and "ADD" not in named, "Dockerfile: the final stage runs or adds something")
    must(named["USER"] == ["65532:65532"], "Dockerfile: USER")
    must(named["WORKDIR"] == ["/data"] and named["VOLUME"] == ["/data"], "Dockerfile: WORKDIR or VOLUME")
    must(json.loads(named["ENTRYPOINT"][0]) == ["/tidings"], "Dockerfile: ENTRYPOINT")
    health = json.loads(named["HEALTHCHECK"][0].split("CMD", 1)[1])
    must(health[0] == "/tidings", "Dockerfile: HEALTHCHECK")
    command_exists("Dockerfile: HEALTHCHECK", health[1:])
    environment = dict(pair.split("=", 1) for rest in named["ENV"] for pair in rest.split())
    must(environment.get("TIDINGS__SERVER__BIND") == "0.0.0.0:8080", "Dockerfile: TIDINGS__SERVER__BIND")
    must(named["EXPOSE"] == ["8080"], "Dockerfile: EXPOSE")
    settings_hold("Dockerfile", environment)
    allowed = {line[1:] for line in text(".dockerignore").splitlines() if line.startswith("!")}
    manifest = text("Cargo.toml")
    for member in re.search(r"members = \[(.*?)\]", manifest).group(1).replace('"', "").split(","):
        must(member.strip().split("/")[0] in allowed, f".dockerignore: the build needs {member.strip()}")
    return environment


def compose(image_environment):
    document = yaml.safe_load(text("docker-compose.yml"))
    services = document["services"]
    tidings = services["tidings"]
    must(tidings["stop_grace_period"] == f"{STOP}s", "docker-compose.yml: stop_grace_period")
    test = tidings["healthcheck"]["test"]
    must(test[:2] == ["CMD", "/tidings"], "docker-compose.yml: healthcheck")
    command_exists("docker-compose.yml: healthcheck", test[2:])
    settings_hold("docker-compose.yml", {**image_environment, **tidings["environment"]})
    must(tidings["ports"] == ["127.0.0.1:8080:8080"], "docker-compose.yml: ports")
    for other in tidings["depends_on"]:
        must(other in services, f"docker-compose.yml: depends_on {other}")
    database = services["postgres"]["environment"]
    user, password = database["POSTGRES_USER"], database["POSTGRES_PASSWORD"]
    url = f"postgres://{user}:{password}@postgres/{database['POSTGRES_DB']}"
    must(tidings["environment"]["TIDINGS__STORE__URL"] == url, "docker-compose.yml: the URL is not that of the database")
    for volume in services["postgres"]["volumes"]:
        must(volume.split(":")[0] in document["volumes"], f"docker-compose.yml: volume {volume}")


def unit():
    values = {}
    for line in text("packaging/tidings.service").splitlines():
        if "=" in line and not line.startswith("#"):
            name, value = line.split("=", 1)
            values.setdefault(name, []).append(value)
    must(values["Type"] == ["notify"] and values["DynamicUser"] == ["yes"], "tidings.service: Type or DynamicUser")
    must(values["TimeoutStopSec"] == [str(STOP)], "tidings.service: TimeoutStopSec")
    start = values["ExecStart"][0].split()
    must(start[0] == "/usr/bin/tidings", "tidings.service: ExecStart")
    command_exists("tidings.service: ExecStart", start[1:2])
    must(values["ExecReload"] == ["/bin/kill -HUP $MAINPID"], "tidings.service: ExecReload")
    environment = dict(pair.split("=", 1) for pair in values["Environment"])
    settings_hold("tidings.service", environment)
    credential = values["LoadCredential"][0].split(":")[0]
    must(credential in environment.values(), "tidings.service: nobody reads the credential")
    must(values["StateDirectory"] == ["tidings"] and "/var/lib/tidings" in environment.values(), "tidings.service: StateDirectory")


def kubernetes():
    documents = {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(text("packaging/kubernetes.yaml"))}
    deployment = documents["Deployment", "tidings"]["spec"]
    pod = deployment["template"]["spec"]
    must(deployment["replicas"] == 3, "kubernetes.yaml: replicas")
    must(pod["terminationGracePeriodSeconds"] == STOP, "kubernetes.yaml: terminationGracePeriodSeconds")
    must(pod["securityContext"]["runAsUser"] == 65532 and pod["securityContext"]["runAsNonRoot"], "kubernetes.yaml: user")
    container = pod["containers"][0]
    must(container["securityContext"]["readOnlyRootFilesystem"], "kubernetes.yaml: readOnlyRootFilesystem")
    command_exists("kubernetes.yaml: args", container["args"][:1])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for probe, path in [("readinessProbe", "/readyz"), ("livenessProbe", "/healthz"), ("startupProbe", "/healthz")]:
        get = container[probe]["httpGet"]
        must(get["path"] == path and get["port"] in ports, f"kubernetes.yaml: {probe}")
    config = documents["ConfigMap", "tidings"]["data"]["tidings.toml"]
    must(f'bind = "0.0.0.0:{ports["http"]}"' in config, "kubernetes.yaml: bind and port")
    must(f'admin_bind = "0.0.0.0:{ports["admin"]}"' in config, "kubernetes.yaml: admin_bind and port")
    with tempfile.NamedTemporaryFile("w", suffix=".toml", encoding="utf-8") as file:
        file.write(config)
        file.flush()
        settings_hold("kubernetes.yaml", {}, ["--config", file.name])
    labels = deployment["template"]["metadata"]["labels"]
    for kind in ["Service", "PodDisruptionBudget"]:
        for (own, name), document in documents.items():
            if own == kind:
                selector = document["spec"]["selector"]
                must(selector.get("matchLabels", selector) == labels, f"kubernetes.yaml: {kind} {name} selects nothing")
    must(documents["PodDisruptionBudget", "tidings"]["spec"]["minAvailable"] < deployment["replicas"], "kubernetes.yaml: budget")


image_environment = dockerfile()
compose(image_environment)
unit()
kubernetes()
for fault in faults:
    print(fault)
print("the packaging files fit the binary" if not faults else f"faults: {len(faults)}")
sys.exit(1 if faults else 0)
