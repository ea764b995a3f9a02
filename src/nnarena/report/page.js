// Sorting, filtering and unfolding. The tables are in the page already; this only moves and hides their rows.

const DATA = JSON.parse(document.getElementById("data").textContent);
const tip = document.getElementById("tip");

const world = {
  hidden: new Set(),
  words: [],
  lit: null,
  charts: [],
  name: (who) => DATA.who[who],
  painted: new Map(),  // competitors that have another colour for the time being
  paint(who) { return this.painted.get(who) ?? who; },
  color(who) { return style(`--c${this.paint(who) % 10}`); },
  dash(who) { return Math.floor(this.paint(who) / 10) % 3; },
  shows(who) {
    if (this.hidden.has(who)) return false;
    const name = DATA.who[who].toLowerCase();
    return !this.words.length || this.words.some((word) => name.includes(word));
  },
  showTip(event, title, lines) {
    tip.replaceChildren(element("b", title), ...lines.flatMap((line, place) => (place ? [element("br"), line] : [line])));
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 16, innerWidth - box.width - 8))}px`;
    tip.style.top = `${event.clientY + 16 + box.height > innerHeight ? event.clientY - box.height - 12 : event.clientY + 16}px`;
  },
  hideTip() { tip.hidden = true; },
  draw() { this.charts.forEach((chart) => chart.draw()); },
};
window.nnarena = world;

function element(tag, text = "", attributes = {}) {
  const made = document.createElement(tag);
  made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

// Filter: the text box and the chips decide together which competitors are shown, in tables and curves.

function refresh() {
  for (const part of document.querySelectorAll("tr[data-who], g[data-who]")) {
    part.toggleAttribute("hidden", !world.shows(Number(part.dataset.who)));
  }
  for (const chip of document.querySelectorAll("#chips [data-who]")) {
    chip.setAttribute("aria-pressed", String(world.shows(Number(chip.dataset.who))));
  }
  world.draw();
}

function showOnly(kept, colors = new Map()) {
  world.hidden = new Set([...DATA.who.keys()].filter((who) => !kept.has(who)));
  paint(colors);
  refresh();
}

// Few of many competitors may share a colour: give them others, or all their own ones again.
function paint(colors) {
  world.painted = colors;
  for (const part of document.querySelectorAll("tr.who[data-who], #chips [data-who]")) {
    const who = Number(part.dataset.who);
    part.className = part.className.replace(/\bc\d\b/, `c${world.paint(who) % 10}`).replace(/\bdash\d\b/, `dash${world.dash(who)}`);
  }
}

function light(who) {
  if (world.lit === who) return;
  world.lit = who;
  world.draw();
}

function makeChips() {
  const room = document.getElementById("chips");
  DATA.who.forEach((name, who) => {
    const chip = element("button", "", { type: "button", "data-who": who, "aria-pressed": "true" });
    chip.className = `c${who % 10} dash${Math.floor(who / 10) % 3}`;
    chip.title = "Click to hide or show, double-click to show only this one";
    chip.append(element("span", "", { class: "swatch" }), name);
    chip.onclick = () => {
      if (!world.hidden.delete(who)) world.hidden.add(who);
      refresh();
    };
    chip.ondblclick = () => showOnly(new Set([who]));
    chip.onpointerenter = () => light(who);
    chip.onpointerleave = () => light(null);
    room.append(chip);
  });
  const all = element("button", "show all", { type: "button", class: "plain" });
  all.onclick = () => {
    world.hidden.clear();
    paint(new Map());
    world.words = [];
    document.getElementById("filter").value = "";
    refresh();
  };
  room.append(all);
}

document.getElementById("filter").addEventListener("input", (event) => {
  world.words = event.target.value.toLowerCase().split(/[\s,]+/).filter(Boolean);
  refresh();
});

// Sorting: by the values behind the cells. What has no value stays at the end either way.

function sortBy(head) {
  const heads = [...head.parentNode.children], column = heads.indexOf(head);
  const up = head.getAttribute("aria-sort") !== "ascending";
  heads.forEach((other) => other.hasAttribute("aria-sort") && other.setAttribute("aria-sort", "none"));
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const text = head.firstElementChild.dataset.kind === "text";
  const body = head.closest("table").tBodies[0];
  const rows = [...body.rows].filter((row) => !row.classList.contains("detail"));
  const value = (row) => {
    const raw = row.cells[column].dataset.v;
    return raw === undefined ? null : text ? raw : Number(raw);
  };
  const keyed = rows.map((row, place) => ({ row, place, detail: row.detail, value: value(row) }));
  keyed.sort((a, b) => {
    if (a.value === null || b.value === null) return (a.value === null) - (b.value === null) || a.place - b.place;
    const order = text ? a.value.localeCompare(b.value, undefined, { numeric: true }) : a.value - b.value;
    return (up ? order : -order) || a.place - b.place;
  });
  for (const { row, detail } of keyed) body.append(row, ...(detail ? [detail] : []));
}

// Unfolding: the exact command, and every trial with the way to run it again.

function commandBox(text) {
  const box = element("div", "", { class: "command" });
  const copy = element("button", "copy", { type: "button", class: "copy", "aria-label": "Copy the command" });
  copy.onclick = async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {  // a page from a file may not reach the clipboard: select the text instead
      const range = document.createRange();
      range.selectNodeContents(box.firstChild);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      document.execCommand("copy");
    }
    copy.textContent = "copied";
    setTimeout(() => { copy.textContent = "copy"; }, 1500);
  };
  box.append(element("code", text), copy);
  return box;
}

function quoted(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`;
}

function makeDetail(row) {
  const task = Number(row.closest("section").dataset.task), who = Number(row.dataset.who);
  const entry = DATA.rows.find((item) => item.task === task && item.who === who);
  const detail = element("tr", "", { class: "detail", "data-who": who });
  const cell = detail.insertCell();
  cell.colSpan = row.cells.length;
  const table = element("table");
  const metrics = [...new Set(entry.trials.flatMap((trial) => Object.keys(trial.numbers)))];
  const head = table.createTHead().insertRow();
  for (const name of ["seed", "status", ...metrics, "epochs", "best epoch", "the same trial again"]) {
    head.append(element("th", name.replace(".", " "), { scope: "col" }));
  }
  const body = table.createTBody();
  for (const trial of entry.trials) {
    const line = body.insertRow();
    const status = trial.status.replace(/_/g, " ") + (trial.collapsed ? ", collapsed" : "");
    const values = [trial.seed, status, ...metrics.map((name) => trial.numbers[name]), trial.epochs, trial.best_epoch];
    for (const value of values) line.insertCell().textContent = value ?? "–";
    line.insertCell().append(commandBox(`nnarena rerun ${quoted(DATA.folder)} ${trial.id}`));
  }
  cell.append(element("h3", "Reproduce this row"), commandBox(entry.command), element("h3", "Trials"), table);
  return detail;
}

function unfold(button) {
  const row = button.closest("tr");
  const open = button.getAttribute("aria-expanded") !== "true";
  button.setAttribute("aria-expanded", String(open));
  if (open) row.after(row.detail = makeDetail(row));
  else { row.detail.remove(); row.detail = undefined; }
}

document.addEventListener("click", (event) => {
  const head = event.target.closest("table.board th button");
  if (head) sortBy(head.parentNode);
  const fold = event.target.closest(".unfold");
  if (fold) unfold(fold);
});

// Start.

makeChips();
for (const section of document.querySelectorAll("section.task")) {
  const task = Number(section.dataset.task);
  const curves = DATA.rows.filter((row) => row.task === task).flatMap((row) =>
    row.trials.filter((trial) => trial.curve).map((trial) => ({ who: row.who, seed: trial.seed, status: trial.status, ...trial.curve })));
  if (curves.length) world.charts.push(new Chart(section.querySelector(".curves"), curves, DATA.tasks[task], world));
  for (const row of section.querySelectorAll("tr.who")) {
    row.addEventListener("pointerenter", () => light(Number(row.dataset.who)));
    row.addEventListener("pointerleave", () => light(null));
  }
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => world.draw());
addEventListener("beforeprint", () => { document.documentElement.classList.add("paper"); world.draw(); });
addEventListener("afterprint", () => { document.documentElement.classList.remove("paper"); world.draw(); });
