#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the pictures of what `causeway bench --json` wrote.

Usage: plot.py [--copies|--shares|--latency] REPORT.json PICTURE
       plot.py --check              draws nothing; exits 0 when a picture could be drawn.

REPORT.json may be - (standard input); PICTURE's ending chooses the format (svg, png, pdf). --copies, of `causeway bench --plot`: one panel
a direction, with GB/s over the bytes of one copy, both axes logarithmic. Of `causeway bench --sharing --pictures`: --shares, what VMs with
weights had of the GPU in each 100 ms, where a weight changes; --latency, which part of the requests of inference beside training took
how long at most, in each way. Exits 1 with one sentence when the package is missing, a file cannot be read or written, or the report
has nothing to draw.
"""

import io
import json
import pathlib
import statistics
import sys

SIDES = {"native": "#888888", "causeway": "#c2410c"}
# How a GPU is shared: colour and name. Both are told apart also where colours look alike, by their lightness.
WAYS = {"native": ("#888888", "native, alone"), "slices": ("#2563eb", "native time slices"), "mps": ("#15803d", "MPS"),
        "causeway": ("#c2410c", "Causeway")}
VMS = ["#c2410c", "#2563eb", "#15803d", "#7c3aed"]
KINDS = {"pinned": "-", "pageable": "--"}
DIRECTIONS = {"h2d": "host to device", "d2h": "device to host"}


def fail(sentence):
    sys.exit(f"causeway: {sentence}")


def load_library():
    """matplotlib, set up to draw files alone: it needs no display."""
    try:
        import matplotlib  # pylint: disable=import-outside-toplevel
        from matplotlib import pyplot  # pylint: disable=import-outside-toplevel
    except ImportError:
        fail(f"The picture cannot be drawn because {sys.executable} has no package matplotlib; install python3-matplotlib "
             "(Debian, Ubuntu), or matplotlib by pip.")
    matplotlib.use("Agg")
    # The same figures give the same file, and texts stay texts.
    matplotlib.rcParams.update({"svg.hashsalt": "causeway", "svg.fonttype": "none", "font.family": "sans-serif"})
    return pyplot


def read_report(name):
    try:
        text = sys.stdin.read() if name == "-" else pathlib.Path(name).read_text(encoding="utf-8")
        return json.loads(text)
    except (OSError, ValueError) as error:
        return fail(f"The picture cannot be drawn because the report {name} cannot be read: {error}.")


def curves_of(report):
    """{(direction, kind, side): [(bytes, GB/s), ...]}, by size; the rate is the median of the samples."""
    curves = {}
    for figure in report["figures"]:
        words = figure["id"].split(":")
        if len(words) != 4 or words[0] != "copy":
            continue
        for side in SIDES:
            samples = figure.get(side, [])
            rate = statistics.median(samples) if samples and f"{side}_error" not in figure else 0
            if rate > 0:
                curves.setdefault((words[1], words[2], side), []).append((int(words[3]), rate))
    return {curve: sorted(points) for curve, points in curves.items()}


def size_name(count):
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count} {unit}"
        count //= 1024
    return f"{count} GiB"


def about(report):
    if report["test_only"]:
        return "causeway bench: a test of the benchmark itself, no measurement"
    return f"causeway bench: driver {report['native_driver'] or report['causeway_driver']}"


def draw(pyplot, report, curves):
    sizes = sorted({count for points in curves.values() for count, _ in points})
    figure, panels = pyplot.subplots(1, 2, sharey=True, figsize=(11, 5), layout="constrained")
    for panel, (direction, name) in zip(panels, DIRECTIONS.items()):
        for side, colour in SIDES.items():
            for kind, style in KINDS.items():
                points = curves.get((direction, kind, side), [])
                if points:
                    panel.plot(*zip(*points), color=colour, linestyle=style, label=f"{side}, {kind}",
                               gid=f"{direction}-{kind}-{side}")
        panel.set_title(name)
        panel.set_xlabel("bytes of one copy")
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter("{x:g}")
        panel.set_xticks(sizes, [size_name(count) if at % 2 == 0 else "" for at, count in enumerate(sizes)], rotation=45)
        panel.minorticks_off()
        panel.grid(color="#e5e5e5")
    panels[0].set_ylabel("GB/s")
    panels[0].legend(frameon=False)
    figure.supxlabel(about(report), fontsize="small", color="#666666")
    return figure


def rows_with(report, curve):
    """(the row, {way: its curve}) of the first row that has one."""
    for row in report.get("rows", []):
        found = {way: curves[curve] for way, curves in row["details"].items() if curves.get(curve)}
        if found:
            return row, found
    return None, {}


def about_sharing(report):
    if report["test_only"]:
        return "causeway bench --sharing: a test of the benchmark itself, no measurement"
    return f"causeway bench --sharing: {report['device']}"


def draw_shares(pyplot, report):
    """The row whose VMs have different weights, or the first that has shares."""
    rows = [row for row in report.get("rows", []) if row["details"].get("causeway", {}).get("shares")]
    if not rows:
        fail("The picture cannot be drawn because the report has no shares over time.")
    row = max(rows, key=lambda each: len(each["details"]["causeway"]["shares"][0]))
    curve = row["details"]["causeway"]
    figure, panel = pyplot.subplots(figsize=(9, 4.5), layout="constrained")
    seconds = [at / 10 for at in range(len(curve["shares"]) + 1)]
    for user, shares in enumerate(zip(*curve["shares"])):
        panel.stairs(shares, seconds, baseline=None, color=VMS[user % len(VMS)], linewidth=2, label=f"VM {user + 1}",
                     gid=f"share-{user + 1}")
    panel.axvline(curve["changed_s"], color="#666666", linestyle=":", label="causeway set", gid="changed")
    panel.set_title(row["name"])
    panel.set_xlabel("seconds")
    panel.set_ylabel("share of the GPU in 100 ms")
    panel.set_xlim(0, seconds[-1])
    panel.set_ylim(0, 1)
    panel.grid(color="#e5e5e5")
    panel.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    figure.supxlabel(about_sharing(report), fontsize="small", color="#666666")
    return figure


def draw_latency(pyplot, report):
    row, curves = rows_with(report, "latency_us")
    if row is None:
        fail("The picture cannot be drawn because the report has no latencies.")
    figure, panel = pyplot.subplots(figsize=(9, 4.5), layout="constrained")
    for way, points in curves.items():
        parts, latencies = zip(*points)
        panel.plot([each / 1000 for each in latencies], parts, drawstyle="steps-post", color=WAYS[way][0], linewidth=2, label=WAYS[way][1],
                   gid=f"latency-{way}")
    panel.set_title(row["name"])
    panel.axhline(0.99, color="#666666", linestyle=":", linewidth=1, label="p99")
    panel.set_xlabel("milliseconds from the moment at which a request was due, at most")
    panel.set_ylabel("part of the requests")
    panel.set_xscale("log")
    panel.set_ylim(0, 1.02)
    # Few decades: those alone would be one tick.
    panel.xaxis.set_major_locator(pyplot.matplotlib.ticker.LogLocator(subs=(1, 2, 5)))
    panel.xaxis.set_major_formatter("{x:g}")
    panel.xaxis.set_minor_formatter("")
    panel.grid(color="#e5e5e5")
    panel.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    figure.supxlabel(about_sharing(report), fontsize="small", color="#666666")
    return figure


def draw_copies(pyplot, report):
    curves = curves_of(report) if "figures" in report else {}
    if not curves:
        fail("The picture cannot be drawn because the report has no copies that were measured.")
    return draw(pyplot, report, curves)


def write(figure, name):
    if not name.endswith(".svg"):
        figure.savefig(name)
        return
    # The date, and the library's version, would make each file another one; and the library leaves blanks at lines' ends.
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    pathlib.Path(name).write_text("".join(line.rstrip() + "\n" for line in text.getvalue().splitlines()), encoding="utf-8")


def main():
    arguments = sys.argv[1:]
    if arguments == ["--check"]:
        load_library()
        return
    kinds = {"--copies": draw_copies, "--shares": draw_shares, "--latency": draw_latency}
    kind = kinds[arguments.pop(0)] if arguments and arguments[0] in kinds else draw_copies
    if len(arguments) != 2:
        sys.exit(__doc__)
    pyplot = load_library()
    figure = kind(pyplot, read_report(arguments[0]))
    try:
        write(figure, arguments[1])
    except (OSError, ValueError) as error:
        fail(f"The picture cannot be written to {arguments[1]}: {error}.")


if __name__ == "__main__":
    main()
