
"use strict";

// Without this script every table stands in its order and every frame is shown.

const collator = new Intl.Collator("en", { numeric: true });

function keyOf(cell) {
  return cell.dataset.key ?? cell.textContent.trim();
}

function sortBy(table, column, direction) {
  const body = table.tBodies[0];
  const rows = Array.from(body.rows, (row) => ({ row, key: keyOf(row.cells[column]) }));
  const missing = (key) => key === "" || key === "–";
  const numeric = rows.every(({ key }) => missing(key) || Number.isFinite(Number(key)));
  const order = numeric ? (a, b) => Number(a) - Number(b) : collator.compare;
  rows.sort((a, b) => {
    // What is missing comes last, whichever way the rest is sorted.
    if (missing(a.key) || missing(b.key)) return missing(a.key) - missing(b.key);
    return direction * order(a.key, b.key);
  });
  body.append(...rows.map(({ row }) => row));
}

for (const table of document.querySelectorAll("table.sortable")) {
  const headings = Array.from(table.tHead.rows[0].cells);
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const descending = heading.getAttribute("aria-sort") === "ascending";
      for (const other of headings) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
      sortBy(table, column, descending ? -1 : 1);
    });
  });
}

// One slider for all layers.
for (const series of document.querySelectorAll(".frames")) {
  const frames = Array.from(series.querySelectorAll("figure"));
  const steps = [...new Set(frames.map((frame) => frame.dataset.severity))].sort((a, b) => a - b);
  const slider = series.querySelector("input");
  const output = series.querySelector("output");
  const show = () => {
    const severity = steps[Number(slider.value)];
    for (const frame of frames) frame.hidden = frame.dataset.severity !== severity;
    output.value = severity;
    slider.setAttribute("aria-valuetext", `severity ${severity}`);
  };
  slider.max = String(steps.length - 1);
  slider.addEventListener("input", show);
  series.querySelector(".slider").hidden = false;
  show();
}

// The expert of each patch or token: a tile per layer, image or text, and checkpoint, all under one slider.

const EXPERT = 0, CLEAN = 1, COMPARED = 2, CHANGED = 3, SET = 4, CLEAN_SET = 7, WORD = 10;
// What changed: the set of experts (the expert, where there are no sets), or only which of the set is first.
const ANOTHER_SET = 1, ANOTHER_FIRST = 2;

function element(name, parent, text = "", className = "") {
  const made = document.createElement(name);
  made.textContent = text;
  if (className) made.className = className;
  parent.append(made);
  return made;
}

function choice(patch, start) {
  const [experts, gates] = [patch[start].split(" "), patch[start + 1].split(" ")];
  if (!patch[start]) return "no expert of its own";
  const named = experts.map((expert, number) => `${expert} (gate ${gates[number]})`).join(", ");
  const margin = patch[start + 2] ? `, margin ${patch[start + 2]}` : "";
  return `expert${experts.length > 1 ? "s" : ""} ${named}${margin}`;
}

function explore(root) {
  const routing = JSON.parse(root.querySelector(".routing").textContent);
  const [slider, output, message] = ["input", "output", ".patch"].map((part) => root.querySelector(part));
  const pixels = root.querySelector(".pixels"); // Texts have none.
  const { input, token } = root.dataset;
  const hasSets = root.dataset.sets === "1";
  const unit = root.querySelector("label").textContent;
  const tiles = [], plain = [];
  let shownExpert = "", pointed = null;

  const verdict = (patch) => {
    if (!patch[CHANGED]) return "";
    const experts = patch[EXPERT] === patch[CLEAN] ? "" : ` from ${patch[CLEAN] || "none"} to ${patch[EXPERT] || "none"}`;
    if (!hasSets) return ` Changed${experts}.`;
    if (patch[CHANGED] === ANOTHER_FIRST) return ` First expert changed${experts}; the set is the same.`;
    return experts ? ` Set changed, its first expert${experts}.` : " Set changed, its first expert is the same.";
  };

  const describe = () => {
    if (!pointed) return;
    const { tile, number } = pointed;
    const { columns, patches } = tile.grids[slider.value];
    const patch = patches[number];
    if (!patch) return;
    const place = columns
      ? `row ${Math.floor(number / columns) + 1}, column ${(number % columns) + 1}`
      : `token ${number + 1} “${patch[WORD].trim()}”`;
    const clean = patch[COMPARED] ? `In the clean ${input}: ${choice(patch, CLEAN_SET)}.` : `No clean ${token} corresponds.`;
    message.textContent = `${tile.name}, ${place}, ${unit} ${routing.severity[slider.value]}: ${choice(patch, SET)}. ${clean}${verdict(patch)}`;
  };

  // One button each; of a text as many as it has tokens at this severity.
  const fill = (tile, step) => {
    tile.grid.replaceChildren();
    tile.buttons = tile.grids[step].patches.map((_, place) => {
      const button = element("button", tile.grid);
      button.type = "button";
      button.tabIndex = place ? -1 : 0;
      const point = () => { pointed = { tile, number: place }; describe(); };
      button.addEventListener("mouseenter", point);
      button.addEventListener("focus", point);
      return button;
    });
  };

  const draw = () => {
    const step = Number(slider.value);
    const side = pixels ? pixels.naturalWidth / (1 + routing.severity.length) : 0;
    for (const { canvas, row } of pixels ? [...tiles, ...plain] : []) {
      canvas.width = canvas.height = side;
      canvas.getContext("2d").drawImage(pixels, side * (1 + step), side * row, side, side, 0, 0, side, side);
    }
    for (const tile of tiles) {
      const patches = tile.grids[step].patches;
      if (!pixels) fill(tile, step);
      tile.buttons.forEach((button, number) => {
        const patch = patches[number];
        const expert = patch[EXPERT] || "–";
        button.textContent = pixels ? (patch[COMPARED] ? expert : "·") : patch[WORD] || "·";
        if (!pixels) button.dataset.expert = expert;
        const blank = pixels ? "#ffffffb3" : "transparent";
        button.style.backgroundColor = patch[COMPARED] ? `${routing.colors[patch[EXPERT]] ?? "#808080"}99` : blank;
        button.classList.toggle("changed", patch[CHANGED] === ANOTHER_SET);
        button.classList.toggle("reordered", patch[CHANGED] === ANOTHER_FIRST);
        button.classList.toggle("other", shownExpert !== "" && patch[EXPERT] !== shownExpert);
      });
      const count = (flag, value) => patches.filter((patch) => patch[flag] === value).length;
      const order = hasSets ? ` set, ${count(CHANGED, ANOTHER_FIRST)} only its first expert` : "";
      const own = patches.filter((patch) => patch[EXPERT] === shownExpert).length;
      tile.caption.textContent = shownExpert === ""
        ? `${tile.checkpoint}: ${count(CHANGED, ANOTHER_SET)} of ${count(COMPARED, 1)} changed${order}`
        : `${tile.checkpoint}: expert ${shownExpert} has ${own} of ${patches.length}`;
    }
    output.value = routing.severity[step];
    slider.setAttribute("aria-valuetext", `${unit} ${routing.severity[step]}`);
    describe();
  };

  routing.layer.forEach((layer, layerNumber) => {
    element("h3", root, layer);
    const images = element("div", root, "", "images");
    routing.image_id.forEach((image, row) => {
      const figure = element("figure", images);
      element("figcaption", figure, image);
      const pair = element("div", figure, "", "tiles");
      if (pixels) {
        const picture = element("div", pair);
        plain.push({ canvas: element("canvas", element("div", picture, "", "tile")), row });
        element("div", picture, "image", "caption");
      }
      routing.checkpoint.forEach((checkpoint, number) => {
        const grids = routing.grids[layerNumber][number][row];
        if (grids.includes(null)) return;
        const part = element("div", pair);
        const tile = { grids, row, checkpoint, name: `${checkpoint}, ${layer}, ${image}`, buttons: [] };
        const box = element("div", part, "", pixels ? "tile" : "words");
        if (pixels) tile.canvas = element("canvas", box);
        const grid = element("div", box, "", "grid");
        tile.grid = grid;
        grid.setAttribute("role", "group");
        grid.setAttribute("aria-label", tile.name);
        grid.style.gridTemplateColumns = `repeat(${grids[0].columns}, 1fr)`;
        if (pixels) fill(tile, 0);
        // One stop of the Tab key for a tile; the arrow keys move in it.
        grid.addEventListener("keydown", (event) => {
          const line = grids[0].columns || 1;
          const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -line, ArrowDown: line };
          const now = tile.buttons.indexOf(document.activeElement);
          const next = tile.buttons[now + steps[event.key]];
          if (!next) return;
          event.preventDefault();
          tile.buttons[now].tabIndex = -1;
          next.tabIndex = 0;
          next.focus();
        });
        tile.caption = element("div", part, "", "caption");
        tiles.push(tile);
      });
    });
  });

  const [experts, shares] = [".experts", ".shares"].map((part) => root.querySelector(part));
  const sharesOf = JSON.parse(root.querySelector(".class-shares").textContent);
  for (const expert of Object.keys(routing.colors)) {
    const button = element("button", experts, expert);
    button.type = "button";
    button.style.backgroundColor = `${routing.colors[expert]}99`;
    button.setAttribute("aria-pressed", "false");
    button.addEventListener("click", () => {
      shownExpert = shownExpert === expert ? "" : expert;
      for (const other of experts.children) {
        other.setAttribute("aria-pressed", String(shownExpert === other.textContent));
      }
      shares.replaceChildren();
      for (const sentence of sharesOf[shownExpert] ?? []) element("li", shares, sentence);
      draw();
    });
  }
  slider.addEventListener("input", draw);
  root.hidden = false;
  root.parentElement.classList.add("explored");
  if (pixels) pixels.decode().then(draw);
  else draw();
}

document.querySelectorAll(".explorer").forEach(explore);
