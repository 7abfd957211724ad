#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""causeway-exporter in front of Debian's Prometheus: names, values, and every query of the example dashboard.

Usage: metrics_test.py PROGRAM_DIR DASHBOARD. A daemon of known numbers (top_test.py) stands behind; what is scraped has to be what
`causeway top --json` says of it. Exit status: 77 without prometheus and promtool.
"""

import json
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

LIMIT_S = 60
PROGRAMS, DASHBOARD = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
sys.argv[1:] = [str(PROGRAMS), str(PROGRAMS), str(PROGRAMS)]  # as top_test.py reads them
from top_test import FakeDaemon, fake_status, top  # noqa: E402

problems = []


def expect(what, is_so):
    if not is_so:
        problems.append(what)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def fetch(url):
    """The answer of a server that may still be starting."""
    end = time.monotonic() + LIMIT_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
                return answer.read().decode()
        except (urllib.error.URLError, ConnectionError):
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def values_of(metrics, name):
    """Value by session number, or "" where there is none; of two directions the last."""
    found = {}
    for line in metrics.splitlines():
        if line.startswith((name + "{", name + " ")):
            number = line.partition('session="')[2].partition('"')[0]
            found[number] = float(line.rsplit(" ", 1)[1])
    return found


def check_values(metrics, sock):
    shown = json.loads(top(sock, "--json", "-n", "1", "-d", "0.5"))
    for metric, key in [("causeway_session_memory_bytes", "memory_bytes"), ("causeway_session_queue_fill_ratio", "queue_fill")]:
        values = values_of(metrics, metric)
        expect(f"{metric}: {len(values)} sessions", len(values) == 64)
        for session in shown["sessions"]:
            value = values.get(str(session["number"]))
            expect(f"{metric} of session {session['number']}: {value}, and top says {session[key]}",
                   value is not None and abs(value - session[key]) <= 1e-5 * max(1, value))
    expect("no GPU time is invented", "causeway_session_gpu_utilization_ratio{" not in metrics)
    expect("calls are those of the status", values_of(metrics, "causeway_session_calls_total") ==
           {str(each["number"]): each["calls"] for each in fake_status(1)["sessions"]})
    for metric, value in [("causeway_up", 1), ("causeway_workers", 66), ("causeway_worker_deaths_total", 1), ("causeway_refused_sessions_total", 3)]:
        expect(f"{metric}: {values_of(metrics, metric)}", values_of(metrics, metric) == {"": value})


def check_shares(metrics):
    """Those of the fake status after the first scrape; what was not measured is absent."""
    status = fake_status(1)
    find = lambda name, scope: [float(line.rsplit(" ", 1)[1]) for line in metrics.splitlines()
                                if line.startswith(name + "{") and f'scope="{scope}"' in line]
    for share in status["shares"]:
        for metric, key, unit in [("causeway_share_gpu_seconds_total", "had_s", 1), ("causeway_share_due_seconds_total", "due_s", 1),
                                  ("causeway_share_waited_seconds_total", "waited_s", 1), ("causeway_share_throttled_seconds_total", "throttled_s", 1),
                                  ("causeway_share_turns_total", "turns", 1), ("causeway_share_turn_wait_p50_seconds", "wait_p50_us", 1e-6),
                                  ("causeway_share_turn_wait_p99_seconds", "wait_p99_us", 1e-6)]:
            values = find(metric, share["scope"])
            wanted = [] if share[key] is None else [share[key] * unit]
            expect(f"{metric} of {share['scope']}: {values}, wanted {wanted}",
                   len(values) == len(wanted) and all(abs(a - b) <= 1e-6 * b for a, b in zip(values, wanted)))
    for scope in status["scopes"]:
        for metric, value in [("causeway_scope_weight", scope["weight"]), ("causeway_scope_cap_ratio", scope["cap"] / 100),
                              ("causeway_scope_reserve_ratio", scope["reserve"] / 100), ("causeway_scope_paused", int(scope["paused"])),
                              ("causeway_scope_worker_deaths_total", scope["worker_deaths"])]:
            expect(f"{metric} of {scope['scope']}: {find(metric, scope['scope'])}", find(metric, scope["scope"]) == [value])
    for gpu, value in [("GPU-00000000-0000-0000-0000-000000000001", 1), ("gpu-0123456789abcdef", 0)]:
        expect(f"what divides {gpu}", f'causeway_gpu_in_turns{{gpu="{gpu}"}} {value}' in metrics)


def check_refusals():
    done = subprocess.run([PROGRAMS / "causeway-exporter", "--listen", "0.0.0.0:1"], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    expect(f"another address than a loopback one: {done.stderr}", done.returncode == 1 and "is no loopback address" in done.stderr)


def check_dashboard(folder, target):
    """A real Prometheus scrapes, then answers each query; only GPU time may have no series, for there is no NVML here."""
    port = free_port()
    (folder / "prometheus.yml").write_text(json.dumps({"scrape_configs": [{"job_name": "causeway", "scrape_interval": "1s",
                                                                           "static_configs": [{"targets": [target]}]}]}))
    with open(folder / "prometheus.log", "w", encoding="utf-8") as log:
        server = subprocess.Popen(["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                                   f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
    try:
        ask = lambda query: json.loads(fetch(f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": query})))
        fetch(f"http://127.0.0.1:{port}/-/ready")
        queries = [target["expr"] for panel in json.loads(DASHBOARD.read_text())["panels"] for target in panel["targets"]]
        waiting, end = set(queries), time.monotonic() + LIMIT_S
        while waiting and time.monotonic() < end:  # rates need two scrapes
            for query in list(waiting):
                answer = ask(query)
                if answer["status"] != "success":
                    problems.append(f"{query}: {answer}")
                    waiting.discard(query)
                elif answer["data"]["result"] or "gpu_utilization" in query:
                    waiting.discard(query)
            time.sleep(0.5)
        for query in waiting:
            problems.append(f"Prometheus finds nothing for: {query}")
        print(f"Prometheus answers {len(queries) - len(waiting)} of {len(queries)} queries of the dashboard.")
    finally:
        server.terminate()
        server.wait(LIMIT_S)


def main():
    if not shutil.which("prometheus") or not shutil.which("promtool"):
        print("prometheus and promtool are missing: vm_configs/install_dependencies.sh installs them.")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        daemon = FakeDaemon(folder / "fake.sock", lambda count: fake_status(count + 1))
        target = f"127.0.0.1:{free_port()}"
        exporter = subprocess.Popen([PROGRAMS / "causeway-exporter", "--listen", target, "--socket", folder / "fake.sock"])
        try:
            metrics = fetch(f"http://{target}/metrics")
            lint = subprocess.run(["promtool", "check", "metrics"], input=metrics, capture_output=True, text=True, timeout=LIMIT_S, check=False)
            expect(f"promtool: {lint.stdout}{lint.stderr}", lint.returncode == 0 and not lint.stdout + lint.stderr)
            check_values(metrics, folder / "fake.sock")
            check_shares(metrics)
            check_dashboard(folder, target)
            check_refusals()
        finally:
            exporter.terminate()
            expect(f"the exporter's end: {exporter.wait(LIMIT_S)}", exporter.returncode == 0)
        expect("each scrape asked the daemon", daemon.asked >= 3)
    print("\n".join(problems) or "The metrics are what the daemon says.")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
