#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the curve of the copies, from what `causeway bench --json` wrote.

Usage: plot.py BENCH.json PICTURE   BENCH.json may be - (standard input); PICTURE's ending chooses the format (svg, png, pdf).
       plot.py --check              draws nothing; exits 0 when a picture could be drawn.

There is one panel a direction, with GB/s over the bytes of one copy, both axes logarithmic. `causeway bench --plot PICTURE`
runs this script. Exits 1 with one sentence when the package is missing, a file cannot be read or written, or there are no copies.
"""

import io
import json
import pathlib
import statistics
import sys

SIDES = {"native": "#888888", "causeway": "#c2410c"}
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
    if len(arguments) != 2:
        sys.exit(__doc__)
    pyplot = load_library()
    report = read_report(arguments[0])
    curves = curves_of(report)
    if not curves:
        fail("The picture cannot be drawn because the report has no copies that were measured.")
    try:
        write(draw(pyplot, report, curves), arguments[1])
    except (OSError, ValueError) as error:
        fail(f"The picture cannot be written to {arguments[1]}: {error}.")


if __name__ == "__main__":
    main()
