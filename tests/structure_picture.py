# SPDX-License-Identifier: Apache-2.0
"""Draws the folders of structure.py as boxes, each tree a column with its lowest floor at the bottom. What goes upwards is
red."""
import html

import structure_floors

BOX_WIDTH, BOX_HEIGHT, GAP, FLOOR_HEIGHT, COLUMN_GAP, MARGIN = 150, 40, 26, 84, 60, 40
# Left to right; a folder stands in the last column that names it or a folder above it.
COLUMNS = ("guest_lib", "host_backend", "host_backend/daemon")
BOTTOM = "ivshmem_ring"
STYLE = """text{font:12px sans-serif;text-anchor:middle;fill:#222}.small{font-size:10px;fill:#555}
rect{fill:#f4f7fb;stroke:#5577aa}path{fill:none;stroke:#8899aa;stroke-opacity:.45}
.up{stroke:#d02020;stroke-opacity:.85}"""


def floors_present(structure, tree):
    """The floors of a tree that have folders, lowest first, each a list of folders."""
    floors = [[folder for folder in floor if folder in structure.folders] for floor in structure_floors.FLOORS[tree]]
    known = {folder for floor in floors for folder in floor}
    unknown = [folder for folder in structure.folders if folder.split("/")[0] == tree and folder not in known]
    return [floor for floor in floors + [unknown] if floor]


def column_of(folder):
    return max(number for number, part in enumerate(COLUMNS) if folder == part or folder.startswith(part + "/"))


def place_boxes(structure):
    """folder -> (x, y) of its box's upper left corner, and the size of the picture."""
    floors = {tree: floors_present(structure, tree) for tree in sorted({part.split("/")[0] for part in COLUMNS})}
    bottom = MARGIN + max(map(len, floors.values())) * FLOOR_HEIGHT
    boxes, left = {}, MARGIN
    for column, part in enumerate(COLUMNS):
        rows = [[folder for folder in floor if column_of(folder) == column] for floor in floors[part.split("/")[0]]]
        width = (max(map(len, rows)) + 0.5) * (BOX_WIDTH + GAP)
        for level, row in enumerate(rows):
            # Every other floor stands to the side, so that edges which pass it can be seen.
            start = left + (width - len(row) * (BOX_WIDTH + GAP)) / 2 + (level % 2 - 0.5) * (BOX_WIDTH + GAP) / 2
            for number, folder in enumerate(row):
                boxes[folder] = (start + number * (BOX_WIDTH + GAP), bottom - (level + 1) * FLOOR_HEIGHT)
        left += width + (COLUMN_GAP if any(rows) else 0)
    shared = [folder for floor in floors_present(structure, BOTTOM) for folder in floor]
    for number, folder in enumerate(shared):
        boxes[folder] = (left / 2 + (number - len(shared) / 2) * (BOX_WIDTH + GAP), bottom)
    return boxes, (left - COLUMN_GAP + MARGIN, bottom + BOX_HEIGHT + MARGIN)


def edge_path(boxes, source, target, count, upward):
    """A curve from the source's lower edge (upper, where it goes upwards) to the target; as wide as it is used."""
    (x1, y1), (x2, y2) = boxes[source], boxes[target]
    x1, x2 = x1 + BOX_WIDTH / 2, x2 + BOX_WIDTH / 2
    if y1 == y2:
        middle = y1 - FLOOR_HEIGHT / 3
    else:
        y1, y2 = (y1 + BOX_HEIGHT, y2) if y2 > y1 else (y1, y2 + BOX_HEIGHT)
        middle = (y1 + y2) / 2
    width = 0.7 + min(count, 40) ** 0.5 / 2
    kind = ' class="up"' if upward else ""
    title = html.escape(f"{source} uses {target}: {count} edges")
    return (f'<path{kind} stroke-width="{width:.1f}" d="M{x1:.0f} {y1:.0f}C{x1:.0f} {middle:.0f} {x2:.0f} {middle:.0f} '
            f'{x2:.0f} {y2:.0f}"><title>{title}</title></path>')


def draw(structure):
    boxes, (width, height) = place_boxes(structure)
    sizes = structure.sizes()
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}">', f"<style>{STYLE}</style>",
           '<rect width="100%" height="100%" style="fill:#fff;stroke:none"/>']
    edges = sorted(structure.folder_edges.items(), key=lambda edge: structure.is_upward(*edge[0]))
    for (source, target), count in edges:
        if source in boxes and target in boxes and target.split("/")[0] != BOTTOM:
            out.append(edge_path(boxes, source, target, count, structure.is_upward(source, target)))
    for folder, (x, y) in boxes.items():
        name = folder.partition("/")[2] or folder
        size = sizes[folder]
        out.append(f'<rect x="{x:.0f}" y="{y:.0f}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="4"/>'
                   f'<text x="{x + BOX_WIDTH / 2:.0f}" y="{y + 17:.0f}">{html.escape(name)}</text>'
                   f'<text class="small" x="{x + BOX_WIDTH / 2:.0f}" y="{y + 32:.0f}">{size["files"]} files, '
                   f'{size["lines"]} lines</text>')
    out.append("</svg>\n")
    return "\n".join(out)
