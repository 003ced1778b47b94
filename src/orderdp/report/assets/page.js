"use strict";

// Charts, in the colors of the day or the night.
const night = matchMedia("(prefers-color-scheme: dark)");
const narrow = matchMedia("(max-width: 700px)");
const specs = JSON.parse(document.getElementById("specs").textContent);

// On a phone the plot needs half of the width. The end of a name is its ratio, so the middle is left out.
const SHORT = "length(datum.label) > 20 ? slice(datum.label, 0, 10) + '…' + slice(datum.label, -8) : datum.label";

function look(width, column) {
  const style = getComputedStyle(document.documentElement);
  const [ink, quiet, line] = ["--ink", "--quiet", "--line"].map((name) => style.getPropertyValue(name).trim());
  const font = getComputedStyle(document.body).fontFamily;
  return {
    background: "transparent",
    font,
    view: { stroke: null },
    axis: {
      labelColor: quiet, titleColor: quiet, gridColor: line, domainColor: line, tickColor: line,
      titleFontWeight: "normal", labelFontSize: 12, titleFontSize: 12, tickCount: 6,
    },
    axisYBand: width < 600 ? { labelLimit: 160, labelExpr: SHORT } : { labelLimit: 260 },
    legend: { labelColor: ink, labelFontSize: 12, columns: Math.max(1, Math.floor((width - 60) / column)) },
  };
}

const shown = new Map();

function draw() {
  for (const [id, spec] of Object.entries(specs)) {
    const place = document.getElementById(id);
    const options = {
      ast: true, // expressions are interpreted: the page forbids making code out of text
      actions: false,
      renderer: "svg",
      config: look(place.clientWidth, spec.usermeta.column),
      tooltip: { theme: night.matches ? "dark" : "light" },
    };
    shown.get(id)?.finalize();
    vegaEmbed(place, spec, options)
      .then((result) => { shown.set(id, result); place.dataset.drawn = night.matches ? "dark" : "light"; })
      .catch((error) => { place.textContent = "This chart could not be drawn: " + error.message; console.error(error); });
  }
}

night.addEventListener("change", draw);
narrow.addEventListener("change", draw);
draw();

// Tables, sorted by a click or a key on a heading.
const worth = (row, column) => {
  const text = row.cells[column].dataset.order;
  return { text, number: text === "" ? NaN : Number(text) };
};

function inOrder(a, b, down) {
  if ((a.text === "") !== (b.text === "")) return a.text === "" ? 1 : -1; // what is missing comes last either way
  const both = !Number.isNaN(a.number) && !Number.isNaN(b.number);
  const order = both ? a.number - b.number : a.text.localeCompare(b.text, "en", { numeric: true });
  return down ? -order : order;
}

for (const table of document.querySelectorAll("table.results")) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    heading.querySelector("button").addEventListener("click", () => {
      const numeric = heading.classList.contains("number");
      const before = heading.getAttribute("aria-sort");
      const down = before === "none" ? numeric : before === "ascending"; // of numbers, the largest first
      headings.forEach((other) => other.setAttribute("aria-sort", "none"));
      heading.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => inOrder(worth(a, column), worth(b, column), down));
      table.tBodies[0].append(...rows);
    });
  });
}

// The table as a file, without rounding.
const tables = JSON.parse(document.getElementById("tables").textContent);

function quoted(value) {
  if (value === null || value === undefined) return "";
  const text = String(value);
  return /[",\r\n]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
}

function asCsv(rows) {
  const names = Object.keys(rows[0]);
  return [names, ...rows.map((row) => names.map((name) => row[name]))].map((line) => line.map(quoted).join(",") + "\r\n").join("");
}

for (const button of document.querySelectorAll(".downloads button")) {
  button.addEventListener("click", () => {
    const { name, rows } = tables[button.dataset.table];
    const csv = button.dataset.kind === "csv";
    const text = csv ? asCsv(rows) : JSON.stringify(rows, null, 2) + "\n";
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: csv ? "text/csv" : "application/json" }));
    link.download = name + (csv ? ".csv" : ".json");
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
}
