// Learning curves on a canvas: one colour a competitor, one thin line a seed.
// A view is a rectangle in scaled coordinates (logarithms where the axis has them); null means all there is.

const PAD = { left: 62, right: 14, top: 10, bottom: 34 };
const DASHES = [[], [6, 3], [2, 3]];

function style(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function niceTicks(low, high, wanted) {
  const rough = (high - low) / wanted;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * unit).find((size) => size >= rough * 0.999);
  const ticks = [];
  for (let place = Math.ceil(low / step - 1e-9); place * step <= high + 1e-9 * step; place++) ticks.push(place * step);
  return ticks;
}

function logTicks(low, high, wanted) {
  const first = Math.ceil(low - 1e-9), last = Math.floor(high + 1e-9);
  if (last - first < 1) return niceTicks(10 ** low, 10 ** high, wanted).filter((v) => v > 0).map(Math.log10);
  const ticks = [];
  if (high - low < 2.5) {
    for (let power = first - 1; power <= last; power++) {
      for (const factor of [1, 2, 5]) ticks.push(power + Math.log10(factor));
    }
    return ticks.filter((tick) => tick >= low && tick <= high);
  }
  const step = Math.max(1, Math.ceil((last - first) / wanted));
  for (let power = first; power <= last; power += step) ticks.push(power);
  return ticks;
}

function shortNumber(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
  return String(Number(value.toPrecision(4)));
}

const AXES = { steps: "steps", epoch: "epochs", seconds: "seconds" };
const HIGHER_IS_BETTER = /accuracy$|exact_match$|spearman$|return$|reward_per_step$/;

function quantityName(key) {
  if (key === "loss") return "training loss";
  if (key === "lr") return "learning rate";
  return key.replace(".", " ");
}

class Chart {
  constructor(room, curves, task, world) {
    Object.assign(this, { curves, task, world, view: null, drag: null, hover: null });
    this.keys = [...new Set(curves.flatMap((curve) => Object.keys(curve.values)))];
    const ranking = "validation." + task.metric;
    this.key = this.keys.includes(ranking) ? ranking : this.keys[0];
    // An agent is judged by what it took to get there: its steps, however they are counted into epochs.
    this.axes = Object.keys(AXES).filter((axis) => curves.every((curve) => curve[axis]));
    this.x = this.axes[0];
    this.build(room);
    this.chooseScale();
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  build(room) {
    room.innerHTML = `<div class="controls">
      <label>Show <select class="quantity"></select></label>
      <label>over <select class="over"></select></label>
      <label><input type="checkbox" class="log"> log scale</label>
      <button type="button" class="reset" hidden>Reset zoom</button></div>
      <canvas tabindex="0" role="img"></canvas>
      <p class="hint">Drag to zoom into a part; click the chart and turn the wheel, or use + − and the arrow keys; double-click for all.</p>`;
    const part = (name) => room.querySelector(name);
    this.canvas = part("canvas");
    this.canvas.setAttribute("aria-label", `Learning curves on ${this.task.name}`);
    this.quantity = part(".quantity");
    for (const key of this.keys) this.quantity.add(new Option(quantityName(key), key, false, key === this.key));
    this.quantity.onchange = () => { this.key = this.quantity.value; this.chooseScale(); this.reset(); };
    for (const axis of this.axes) part(".over").add(new Option(AXES[axis], axis));
    part(".over").onchange = (event) => { this.x = event.target.value; this.reset(); };
    this.logBox = part(".log");
    this.logBox.onchange = () => { this.log = this.logBox.checked; this.reset(); };
    this.resetButton = part(".reset");
    this.resetButton.onclick = () => this.reset();
  }

  chooseScale() {
    // Errors fall over decades; accuracies and returns do not, and what is not positive has no logarithm.
    const values = this.curves.flatMap((curve) => curve.values[this.key] || []);
    this.log = !HIGHER_IS_BETTER.test(this.key) && values.every((value) => value === null || value > 0);
    this.logBox.checked = this.log;
    this.logBox.disabled = !values.some((value) => value > 0);
  }

  visible() {
    return this.curves.filter((curve) => curve.values[this.key] && this.world.shows(curve.who));
  }

  scaled(value) {
    if (value === null) return null;
    if (!this.log) return value;
    return value > 0 ? Math.log10(value) : null;
  }

  whole() {
    let x0 = Infinity, x1 = -Infinity, y0 = Infinity, y1 = -Infinity;
    for (const curve of this.visible()) {
      curve[this.x].forEach((x, place) => {
        const y = this.scaled(curve.values[this.key][place]);
        if (x === null || y === null) return;
        if (x < x0) x0 = x;
        if (x > x1) x1 = x;
        if (y < y0) y0 = y;
        if (y > y1) y1 = y;
      });
    }
    if (x0 > x1) return null;
    if (this.x !== "epoch") x0 = 0;
    if (x0 === x1) { x0 -= 0.5; x1 += 0.5; }
    const air = (y1 - y0) * 0.04 || Math.abs(y1) * 0.05 || 0.5;
    return { x0, x1, y0: y0 - air, y1: y1 + air };
  }

  // Pixels of scaled coordinates, and back.
  px(x) { return PAD.left + ((x - this.now.x0) / (this.now.x1 - this.now.x0)) * this.width; }
  py(y) { return PAD.top + (1 - (y - this.now.y0) / (this.now.y1 - this.now.y0)) * this.height; }
  ux(px) { return this.now.x0 + ((px - PAD.left) / this.width) * (this.now.x1 - this.now.x0); }
  uy(py) { return this.now.y0 + (1 - (py - PAD.top) / this.height) * (this.now.y1 - this.now.y0); }

  draw() {
    const box = this.canvas.getBoundingClientRect(), ratio = window.devicePixelRatio || 1;
    if (!box.width) return;
    this.canvas.width = Math.round(box.width * ratio);
    this.canvas.height = Math.round(box.height * ratio);
    const pen = this.pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    this.width = Math.max(10, box.width - PAD.left - PAD.right);
    this.height = Math.max(10, box.height - PAD.top - PAD.bottom);
    this.now = this.view || this.whole();
    this.resetButton.hidden = !this.view;
    if (!this.now) {
      pen.fillStyle = style("--faint");
      pen.textAlign = "center";
      pen.font = "14px system-ui, sans-serif";
      pen.fillText("No curve to show", box.width / 2, box.height / 2);
      return;
    }
    this.drawAxes(pen);
    this.drawCurves(pen);
    this.drawHand(pen);
  }

  drawAxes(pen) {
    pen.font = "11px system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', sans-serif";
    pen.lineWidth = 1;
    pen.strokeStyle = style("--line");
    pen.fillStyle = style("--faint");
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    const ys = (this.log ? logTicks : niceTicks)(this.now.y0, this.now.y1, 5);
    for (const y of ys) {
      const place = Math.round(this.py(y)) + 0.5;
      pen.beginPath(); pen.moveTo(PAD.left, place); pen.lineTo(PAD.left + this.width, place); pen.stroke();
      pen.fillText(shortNumber(this.log ? 10 ** y : y), PAD.left - 8, place);
    }
    pen.textAlign = "center";
    pen.textBaseline = "top";
    let xs = niceTicks(this.now.x0, this.now.x1, Math.max(3, Math.min(10, this.width / 90)));
    if (this.x !== "seconds") xs = xs.filter((x) => Math.abs(x - Math.round(x)) < 1e-9);
    for (const x of xs) {
      const text = this.x === "steps" ? (Math.round(x) || 0).toLocaleString("en") : shortNumber(x);
      const edge = PAD.left + this.width + PAD.right - pen.measureText(text).width / 2 - 1;
      pen.fillText(text, Math.min(this.px(x), edge), PAD.top + this.height + 6);
    }
    pen.fillText(this.x === "epoch" ? "epoch" : AXES[this.x], PAD.left + this.width / 2, PAD.top + this.height + 20);
  }

  drawCurves(pen) {
    pen.save();
    pen.beginPath(); pen.rect(PAD.left, PAD.top, this.width, this.height); pen.clip();
    pen.lineJoin = "round";
    const curves = this.visible(), lit = this.world.lit;
    const faint = curves.length > 60 ? 0.45 : 0.85;
    for (const curve of curves) {
      const dimmed = lit !== null && lit !== curve.who;
      pen.globalAlpha = dimmed ? 0.12 : lit === curve.who ? 1 : faint;
      pen.lineWidth = lit === curve.who ? 2 : curves.length > 60 ? 0.9 : 1.3;
      pen.strokeStyle = pen.fillStyle = this.world.color(curve.who);
      pen.setLineDash(DASHES[this.world.dash(curve.who)]);
      this.drawLine(pen, curve);
    }
    pen.restore();
  }

  drawLine(pen, curve) {
    let open = false, points = 0, last = null;
    pen.beginPath();
    curve.values[this.key].forEach((value, place) => {
      const y = this.scaled(value), x = curve[this.x][place];
      if (y === null || x === null) { open = false; return; }
      const at = [this.px(x), this.py(y)];
      if (open) pen.lineTo(...at); else pen.moveTo(...at);
      open = true;
      points += 1;
      last = at;
    });
    pen.stroke();
    if (points === 1) { pen.beginPath(); pen.arc(...last, 2.5, 0, 7); pen.fill(); }
    if (points && curve.status !== "done") {  // where a curve ended badly
      pen.setLineDash([]);
      pen.beginPath();
      pen.moveTo(last[0] - 4, last[1] - 4); pen.lineTo(last[0] + 4, last[1] + 4);
      pen.moveTo(last[0] + 4, last[1] - 4); pen.lineTo(last[0] - 4, last[1] + 4);
      pen.stroke();
    }
  }

  drawHand(pen) {
    if (this.hover) {
      pen.fillStyle = this.world.color(this.hover.curve.who);
      pen.strokeStyle = style("--card");
      pen.lineWidth = 2;
      pen.beginPath(); pen.arc(this.hover.px, this.hover.py, 5, 0, 7); pen.fill(); pen.stroke();
    }
    if (this.drag && this.drag.moved) {
      const { from, to } = this.drag;
      pen.fillStyle = pen.strokeStyle = style("--accent");
      pen.globalAlpha = 0.12;
      pen.fillRect(from[0], from[1], to[0] - from[0], to[1] - from[1]);
      pen.globalAlpha = 0.7;
      pen.lineWidth = 1;
      pen.strokeRect(from[0], from[1], to[0] - from[0], to[1] - from[1]);
      pen.globalAlpha = 1;
    }
  }

  reset() { this.view = null; this.hover = null; this.world.hideTip(); this.draw(); }

  zoom(factor, px = PAD.left + this.width / 2, py = PAD.top + this.height / 2) {
    if (!this.now) return;
    const x = this.ux(px), y = this.uy(py), { x0, x1, y0, y1 } = this.now;
    const size = (x1 - x0) * factor;
    if (size < 1e-6 || size > 1e9) return;
    this.view = { x0: x - (x - x0) * factor, x1: x + (x1 - x) * factor, y0: y - (y - y0) * factor, y1: y + (y1 - y) * factor };
    this.draw();
  }

  pan(dx, dy) {
    if (!this.now) return;
    const { x0, x1, y0, y1 } = this.now, x = (x1 - x0) * dx, y = (y1 - y0) * dy;
    this.view = { x0: x0 + x, x1: x1 + x, y0: y0 + y, y1: y1 + y };
    this.draw();
  }

  nearest(px, py) {
    let best = null, least = 28 * 28;
    for (const curve of this.visible()) {
      curve.values[this.key].forEach((value, place) => {
        const y = this.scaled(value), x = curve[this.x][place];
        if (y === null || x === null) return;
        const at = [this.px(x), this.py(y)], away = (at[0] - px) ** 2 + (at[1] - py) ** 2;
        if (away < least && at[0] >= PAD.left && at[0] <= PAD.left + this.width) {
          least = away;
          best = { curve, place, px: at[0], py: at[1] };
        }
      });
    }
    return best;
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  listen() {
    const canvas = this.canvas;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "touch" || event.button || !this.now) return;
      this.drag = { from: this.point(event), to: this.point(event), moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!this.now) return;
      const at = this.point(event);
      if (this.drag) {
        this.drag.to = at;
        this.drag.moved ||= Math.hypot(at[0] - this.drag.from[0], at[1] - this.drag.from[1]) > 5;
      }
      this.hover = this.drag && this.drag.moved ? null : this.nearest(...at);
      this.tell(event);
      this.draw();
    });
    canvas.addEventListener("pointerup", () => {
      if (this.drag && this.drag.moved) this.zoomToBox(this.drag);
      this.drag = null;
      this.draw();
    });
    canvas.addEventListener("pointercancel", () => { this.drag = null; this.draw(); });
    canvas.addEventListener("pointerleave", () => { this.hover = null; this.world.hideTip(); this.draw(); });
    canvas.addEventListener("dblclick", () => this.reset());
    canvas.addEventListener("wheel", (event) => {
      // A page must scroll over a chart that one only passes; the wheel zooms in one that was clicked.
      if (document.activeElement !== canvas && !event.ctrlKey) return;
      event.preventDefault();
      this.zoom(1.0015 ** event.deltaY, ...this.point(event));
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const acts = {
        "+": () => this.zoom(0.8), "=": () => this.zoom(0.8), "-": () => this.zoom(1.25), "0": () => this.reset(),
        Escape: () => this.reset(), ArrowLeft: () => this.pan(-0.1, 0), ArrowRight: () => this.pan(0.1, 0),
        ArrowUp: () => this.pan(0, 0.1), ArrowDown: () => this.pan(0, -0.1),
      };
      if (acts[event.key] && !event.ctrlKey && !event.metaKey) { event.preventDefault(); acts[event.key](); }
    });
  }

  zoomToBox({ from, to }) {
    const [x0, x1] = [from[0], to[0]].sort((a, b) => a - b), [y0, y1] = [from[1], to[1]].sort((a, b) => a - b);
    const { now } = this, view = { ...now };
    if (x1 - x0 > 8) Object.assign(view, { x0: this.ux(x0), x1: this.ux(x1) });
    if (y1 - y0 > 8) Object.assign(view, { y0: this.uy(y1), y1: this.uy(y0) });
    this.view = view;
  }

  tell(event) {
    if (!this.hover) { this.world.hideTip(); return; }
    const { curve, place } = this.hover;
    const value = curve.values[this.key][place];
    this.world.showTip(event, this.world.name(curve.who), [
      `seed ${curve.seed}, epoch ${curve.epoch[place]}`,
      `${quantityName(this.key)} ${shortNumber(value)}`,
      ...(curve.steps ? [`${curve.steps[place].toLocaleString("en")} steps`] : []),
      ...(curve.seconds[place] === null ? [] : [`${shortNumber(curve.seconds[place])} s`]),
      ...(curve.status === "done" ? [] : [curve.status.replace(/_/g, " ")]),
    ]);
  }
}
