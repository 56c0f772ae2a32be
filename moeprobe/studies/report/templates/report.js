
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

for (const series of document.querySelectorAll(".frames")) {
  const frames = Array.from(series.querySelectorAll("figure"));
  const slider = series.querySelector("input");
  const output = series.querySelector("output");
  const show = () => {
    frames.forEach((frame, number) => { frame.hidden = number !== Number(slider.value); });
    const severity = frames[Number(slider.value)].dataset.severity;
    output.value = severity;
    slider.setAttribute("aria-valuetext", `severity ${severity}`);
  };
  slider.addEventListener("input", show);
  series.querySelector(".slider").hidden = false;
  show();
}
